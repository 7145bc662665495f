// SPDX-License-Identifier: GPL-2.0-only
/* The programs under test that xdplab brings: one verdict, four packet operations, two ways to reach the packet.
 *
 * A program counts each packet once, per CPU and RX queue; the verdict it then gives is always `action`, so packets
 * received, dropped, passed or sent back are one number. Only a packet that an operation can't handle is counted a
 * second time, in `aborted`, and gets XDP_ABORTED. */
#include "bpf.h"

const volatile __u32 action = XDP_DROP;
/* Extra dependent 64-bit multiplications before the verdict: a planted cost for testing the instrument. */
const volatile __u32 extra_mul = 0;

struct counts {
	__u64 packets;
	__u64 aborted;
	__u64 scratch;
};

/* Key: RX queue index; the loader sizes it to the device's RX queues. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} rx_counts SEC(".maps");

#define MUL(n)                                                                                                         \
	if (extra_mul > (n))                                                                                           \
	x = x * 6364136223846793005ULL + 1442695040888963407ULL

static __always_inline void planted_cost(struct counts *counts)
{
	__u64 x;

	if (!extra_mul)
		return;
	x = counts->packets;
	/* Unrolled: each branch is on a constant, so the verifier removes it and no loop overhead is measured. */
	MUL(0); MUL(1); MUL(2); MUL(3); MUL(4); MUL(5); MUL(6); MUL(7);
	MUL(8); MUL(9); MUL(10); MUL(11); MUL(12); MUL(13); MUL(14); MUL(15);
	counts->scratch = x;
}

static __always_inline int verdict(struct xdp_md *ctx, int failed)
{
	__u32 queue = ctx->rx_queue_index;
	struct counts *counts = bpf_map_lookup_elem(&rx_counts, &queue);

	if (unlikely(!counts))
		return XDP_ABORTED;
	counts->packets++;
	planted_cost(counts);
	if (unlikely(failed)) {
		counts->aborted++;
		return XDP_ABORTED;
	}
	return action;
}

static __always_inline struct ethhdr *ethernet(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) > (void *)(long)ctx->data_end ? NULL : eth;
}

/* An EtherType below 0x600 is a length (IEEE 802.3): not a frame this tool sends. */
static __always_inline int bad_proto(__be16 proto)
{
	return __builtin_bswap16(proto) < ETH_P_802_3_MIN;
}

static __always_inline void swap_macs(struct ethhdr *eth)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, mac, ETH_ALEN);
}

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

SEC("xdp.frags") int no_touch(struct xdp_md *ctx)
{
	return verdict(ctx, 0);
}

SEC("xdp.frags") int read_data(struct xdp_md *ctx)
{
	struct ethhdr *eth = ethernet(ctx);

	return verdict(ctx, !eth || bad_proto(eth->h_proto));
}

SEC("xdp.frags") int read_data_load(struct xdp_md *ctx)
{
	struct ethhdr eth;

	return verdict(ctx, bpf_xdp_load_bytes(ctx, 0, &eth, sizeof(eth)) || bad_proto(eth.h_proto));
}

SEC("xdp.frags") int swap_macs_prog(struct xdp_md *ctx)
{
	struct ethhdr *eth = ethernet(ctx);

	if (eth)
		swap_macs(eth);
	return verdict(ctx, !eth);
}

SEC("xdp.frags") int swap_macs_load(struct xdp_md *ctx)
{
	struct ethhdr eth;
	int failed = bpf_xdp_load_bytes(ctx, 0, &eth, sizeof(eth)) != 0;

	if (!failed) {
		swap_macs(&eth);
		failed = bpf_xdp_store_bytes(ctx, 0, &eth, sizeof(eth)) != 0;
	}
	return verdict(ctx, failed);
}

SEC("xdp.frags") int parse_ip(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = ethernet(ctx);
	void *next = eth + 1;
	__be16 proto;
	int i;

	if (!eth)
		return verdict(ctx, 1);
	proto = eth->h_proto;
	for (i = 0; i < 2 && is_vlan(proto); i++) {
		struct vlan_hdr *vlan = next;

		if ((void *)(vlan + 1) > end)
			return verdict(ctx, 1);
		proto = vlan->proto;
		next = vlan + 1;
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = next;

		return verdict(ctx, (void *)(ip + 1) > end || (ip->ihl_version & 0xf) < 5 ||
					    next + (ip->ihl_version & 0xf) * 4 > end);
	}
	if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = next;

		return verdict(ctx, (void *)(ip + 1) > end || (ip->version_class >> 4) != 6);
	}
	return verdict(ctx, 0);
}

SEC("xdp.frags") int parse_ip_load(struct xdp_md *ctx)
{
	__u32 offset = sizeof(struct ethhdr);
	struct ethhdr eth;
	__be16 proto;
	int i;

	if (bpf_xdp_load_bytes(ctx, 0, &eth, sizeof(eth)))
		return verdict(ctx, 1);
	proto = eth.h_proto;
	for (i = 0; i < 2 && is_vlan(proto); i++) {
		struct vlan_hdr vlan;

		if (bpf_xdp_load_bytes(ctx, offset, &vlan, sizeof(vlan)))
			return verdict(ctx, 1);
		proto = vlan.proto;
		offset += sizeof(vlan);
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		return verdict(ctx, bpf_xdp_load_bytes(ctx, offset, &ip, sizeof(ip)) || (ip.ihl_version & 0xf) < 5);
	}
	if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		return verdict(ctx, bpf_xdp_load_bytes(ctx, offset, &ip, sizeof(ip)) || (ip.version_class >> 4) != 6);
	}
	return verdict(ctx, 0);
}

char _license[] SEC("license") = "GPL";
