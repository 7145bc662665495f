// SPDX-License-Identifier: GPL-2.0-only
/* No XDP program. */
#include "../bpf.h"

SEC("socket") int filter(void *ctx)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
