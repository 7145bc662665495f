// SPDX-License-Identifier: GPL-2.0-only
/* The program of a devmap entry: runs on the frames redirected to one interface, before they are transmitted. Each interface
 * has an instance of its own. Kernel 5.8. */
#include "bpf.h"

const volatile __u32 action = XDP_PASS;
/* The interface's MAC, 16 bits at a time as they are in memory. */
const volatile __u32 mac_0 = 0;
const volatile __u32 mac_2 = 0;
const volatile __u32 mac_4 = 0;

struct counts {
	__u64 packets;
	__u64 aborted;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} egress_counts SEC(".maps");

SEC("xdp.frags/devmap") int egress(struct xdp_md *ctx)
{
	struct ethhdr *eth = ethernet(ctx);
	__u32 zero = 0;
	struct counts *counts = bpf_map_lookup_elem(&egress_counts, &zero);
	__u16 *source;

	if (unlikely(!counts))
		return XDP_ABORTED;
	counts->packets++;
	if (action == XDP_DROP)
		return XDP_DROP;
	if (unlikely(!eth)) {
		counts->aborted++;
		return XDP_ABORTED;
	}
	source = (void *)eth->h_source;
	source[0] = mac_0;
	source[1] = mac_2;
	source[2] = mac_4;
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
