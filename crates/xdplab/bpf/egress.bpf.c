// SPDX-License-Identifier: GPL-2.0-only
/* The program of a devmap entry: runs on the frames redirected to one interface, before they are transmitted. Each interface
 * has an instance of its own. Kernel 5.8. */
#include "bpf.h"

const volatile __u32 action = XDP_PASS;
/* The interface's MAC, bytes 0 to 3 and 4 to 5, as they are in memory. */
const volatile __u32 mac_start = 0;
const volatile __u32 mac_end = 0;

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
	__u32 zero = 0, start = mac_start, end = mac_end;
	struct counts *counts = bpf_map_lookup_elem(&egress_counts, &zero);

	if (unlikely(!counts))
		return XDP_ABORTED;
	counts->packets++;
	if (action == XDP_DROP)
		return XDP_DROP;
	if (unlikely(!eth)) {
		counts->aborted++;
		return XDP_ABORTED;
	}
	__builtin_memcpy(eth->h_source, &start, 4);
	__builtin_memcpy(eth->h_source + 4, &end, 2);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
