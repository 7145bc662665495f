// SPDX-License-Identifier: GPL-2.0-only
/* The reference workload: a chain of dependent multiplications that no memory, packet or map takes part in. Run alone by
 * BPF_PROG_TEST_RUN, its time moves with the clock frequency and the share of the core that this CPU gets, and with
 * nothing else. */
#include "bpf.h"

/* In the loop 8 at a time, so that the loop's own instructions run beside them. */
enum { MULTIPLICATIONS = 16000 };

#define MUL() asm volatile("%0 *= %1" : "+r"(x) : "r"(factor))

SEC("xdp.frags") int reference(struct xdp_md *ctx)
{
	__u64 x = ctx->rx_queue_index | 1, factor = 6364136223846793005ULL;
	__u32 i;

	for (i = 0; i < MULTIPLICATIONS / 8; i++) {
		MUL(); MUL(); MUL(); MUL(); MUL(); MUL(); MUL(); MUL();
	}
	/* Never taken, since a product of odd numbers is odd; without it the chain would be for nothing. */
	return x & 1 ? XDP_DROP : XDP_ABORTED;
}

char _license[] SEC("license") = "GPL";
