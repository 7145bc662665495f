// SPDX-License-Identifier: GPL-2.0-only
/* Gives packets to AF_XDP sockets: those of one RX queue to the sockets bound to it, in turn if there are several. Packets
 * of other queues go to the network stack. */
#include "bpf.h"

const volatile __u32 queue = 0;
const volatile __u32 socket_count = 1;

/* The sockets of the queue; sized and filled by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Of a packet of the queue one of the first two is counted. */
struct counts {
	__u64 redirected;
	__u64 aborted;
	__u64 passed; /* of other queues */
	__u64 next;
};

/* Key: the RX queue; sized by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} rx_counts SEC(".maps");

SEC("xdp.frags") int to_socket(struct xdp_md *ctx)
{
	struct counts *counts;
	__u32 rx_queue = ctx->rx_queue_index, index = 0;
	int verdict;

	counts = bpf_map_lookup_elem(&rx_counts, &rx_queue);
	if (unlikely(!counts))
		return XDP_ABORTED;
	if (rx_queue != queue) {
		counts->passed++;
		return XDP_PASS;
	}
	if (socket_count > 1) {
		index = counts->next;
		counts->next = index + 1 < socket_count ? index + 1 : 0;
	}
	verdict = bpf_redirect_map(&sockets, index, XDP_ABORTED);
	if (unlikely(verdict != XDP_REDIRECT))
		counts->aborted++;
	else
		counts->redirected++;
	return verdict;
}

char _license[] SEC("license") = "GPL";
