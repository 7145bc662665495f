// SPDX-License-Identifier: GPL-2.0-only
/* The programs of `redirect`, `redirect-map` and `redirect-multi`. Each counts a packet once, per CPU and RX queue, before it
 * hands it on; a packet too short to be an Ethernet frame is counted in `aborted` too, and gets XDP_ABORTED. */
#include "bpf.h"

const volatile __u32 target_ifindex = 0;

struct counts {
	__u64 packets;
	__u64 aborted;
};

/* Key: RX queue index; the loader sizes it to the device's RX queues. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} rx_counts SEC(".maps");

/* struct bpf_devmap_val, include/uapi/linux/bpf.h */
struct devmap_val {
	__u32 ifindex;
	__u32 prog_fd;
};

/* Filled before a program that uses it is attached, and sized to what it is filled with. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct devmap_val);
} targets SEC(".maps");

/* Whether the packet is to be redirected. */
static __always_inline int count(struct xdp_md *ctx, int failed)
{
	__u32 queue = ctx->rx_queue_index;
	struct counts *counts = bpf_map_lookup_elem(&rx_counts, &queue);

	if (unlikely(!counts))
		return 0;
	counts->packets++;
	if (unlikely(failed))
		counts->aborted++;
	return !failed;
}

/* The MACs are exchanged, so that a frame goes back to where it came from. */
SEC("xdp.frags") int redirect(struct xdp_md *ctx)
{
	struct ethhdr *eth = ethernet(ctx);

	if (!count(ctx, !eth) || !eth)
		return XDP_ABORTED;
	swap_macs(eth);
	return bpf_redirect(target_ifindex, 0);
}

SEC("xdp.frags") int redirect_load(struct xdp_md *ctx)
{
	struct ethhdr eth;
	int failed = bpf_xdp_load_bytes(ctx, 0, &eth, sizeof(eth)) != 0;

	if (!failed) {
		swap_macs(&eth);
		failed = bpf_xdp_store_bytes(ctx, 0, &eth, sizeof(eth)) != 0;
	}
	return count(ctx, failed) ? bpf_redirect(target_ifindex, 0) : XDP_ABORTED;
}

SEC("xdp.frags") int redirect_map(struct xdp_md *ctx)
{
	struct ethhdr *eth = ethernet(ctx);

	if (!count(ctx, !eth) || !eth)
		return XDP_ABORTED;
	swap_macs(eth);
	return bpf_redirect_map(&targets, 0, 0);
}

/* A copy for each target but the one that the packet came in by; packet memory is not touched. */
SEC("xdp.frags") int redirect_multi(struct xdp_md *ctx)
{
	return count(ctx, 0) ? bpf_redirect_map(&targets, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS) : XDP_ABORTED;
}

char _license[] SEC("license") = "GPL";
