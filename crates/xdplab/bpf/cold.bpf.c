// SPDX-License-Identifier: GPL-2.0-only
/* In front of the dispatcher in a test run with cold packet data: pushes the first line of the packet out of the first
 * level cache, then goes on to the dispatcher.
 *
 * First level caches choose the set by the address within a page (they are virtually indexed, and a page's worth of sets is
 * all they have). So lines at the same place in other pages fall into the set of the packet's line and into no other:
 * walking a few dozen pushes that line out, and hardly anything else. */
#include "bpf.h"

/* 64 lines for a set of 8 (32 KiB) to 16 (64 KiB): enough for any order of replacement. */
enum { PAGE = 4096, LINE = 64, PAGES = 64 };

struct pages {
	__u8 bytes[PAGES][PAGE];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pages);
} walked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} next SEC(".maps");

SEC("xdp.frags") int cold(struct xdp_md *ctx)
{
	void *packet = (void *)(long)ctx->data;
	__u32 zero = 0, i;
	__u64 place = 0, sum;
	struct pages *all = bpf_map_lookup_elem(&walked, &zero);

	if (unlikely(!all))
		return XDP_ABORTED;
	/* The address as a number: the verifier allows no masking of a pointer. */
	bpf_probe_read_kernel(&place, sizeof(place), &packet);
	place &= PAGE - LINE;
	sum = (__u64)bpf_get_prandom_u32() << 32;
	for (i = 0; i < PAGES; i++)
		sum += *(volatile __u64 *)&all->bytes[i][place];
	/* The processor would go on while most of the lines walked are still under way, and the miss of the packet's line
	 * would hide behind theirs. It does not go past a wrong guess before the lines are all there; 7 times out of 8 one
	 * of these is wrong. */
	GUESS(sum, 63);
	GUESS(sum, 62);
	GUESS(sum, 61);
	bpf_tail_call(ctx, &next, 0);
	return XDP_ABORTED;
}

char _license[] SEC("license") = "GPL";
