// SPDX-License-Identifier: GPL-2.0-only
/* One XDP program beside one of another kind. */
#include "../bpf.h"

SEC("xdp.frags") int aborts(struct xdp_md *ctx)
{
	return XDP_ABORTED;
}

SEC("socket") int filter(void *ctx)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
