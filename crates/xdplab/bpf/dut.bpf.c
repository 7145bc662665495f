// SPDX-License-Identifier: GPL-2.0-only
/* The programs under test that xdplab brings: one verdict, four packet operations, two ways to reach the packet.
 *
 * A program counts each packet once, per CPU and RX queue; the verdict it then gives is always `action`, so packets
 * received, dropped, passed or sent back are one number. Only a packet that an operation can't handle is counted a
 * second time, in `aborted`, and gets XDP_ABORTED. `uncounted` alone counts nothing. */
#include "bpf.h"

const volatile __u32 action = XDP_DROP;
/* A planted cost for testing the instrument; see planted_cost(). */
const volatile __u32 planted = 0;
const volatile __u32 extra_mul = 0;
const volatile __u32 extra_add = 0;
const volatile __u32 extra_touch = 0;
const volatile __u32 extra_lookup = 0;

struct counts {
	__u64 packets;
	__u64 aborted;
	__u64 random;
};

/* Key: RX queue index; the loader sizes it to the device's RX queues. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} rx_counts SEC(".maps");

/* 64 KiB, twice a usual first-level data cache: the line touched comes from the second level. */
enum { TOUCH_LINES = 1024 };
/* Multiplications of every chain. */
enum { FIXED_MUL = 4 };

struct line {
	__u64 value;
	__u64 rest[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TOUCH_LINES);
	__type(key, __u32);
	__type(value, struct line);
} touched SEC(".maps");

/* Always empty. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} looked_up SEC(".maps");

/* One instruction of the chain, or one of about as many bytes that is off the chain. The condition is constant for the
 * verifier, which leaves one of the two. */
#define CHAIN(count, n, op)                                                                                            \
	if ((count) > (n))                                                                                             \
		asm volatile("%0 " op " %1" : "+r"(x) : "r"(factor));                                                  \
	else                                                                                                           \
		asm volatile("%0 = %1" : "=r"(idle) : "r"(factor))

/* A chain of instructions of which each needs the result of the one before, from a random number to three branches.
 *
 * A processor executes far ahead of a chain whose result nobody waits for: 16 multiplications that end in memory cost
 * next to nothing. A branch that is predicted wrongly is waited for, and of three branches on random bits one at least is
 * wrong 7 times out of 8. So a multiplication, with its latency of 3 to 4 clock cycles, costs 7/8 of that, and an addition
 * 7/8 of a cycle. With nothing extra, branches and about as many bytes of code are there too, and the fixed
 * multiplications make the chain end later than the branches are fetched: two planted programs differ in the length of
 * the chain alone. */
static __attribute__((noinline)) int planted_cost(struct counts *counts)
{
	__u64 x, factor = 6364136223846793005ULL, idle;
	__u32 mul, add;

	if (!counts)
		return 0;
	x = counts->random + counts->packets;
	/* xorshift64 (Marsaglia 2003); the count keeps it from staying at zero */
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	counts->random = x;
	if (extra_touch) {
		/* 37 lines apart: no prefetcher follows across pages that often. */
		__u32 index = counts->packets * 37 % TOUCH_LINES;
		struct line *line = bpf_map_lookup_elem(&touched, &index);

		if (line)
			x += line->value;
	}
	if (extra_lookup) {
		__u64 key = x, *value = bpf_map_lookup_elem(&looked_up, &key);

		if (value)
			x += *value;
	}
	mul = extra_mul + FIXED_MUL;
	add = extra_add;
	asm volatile("" : "+r"(factor));
	CHAIN(mul, 0, "*="); CHAIN(mul, 1, "*="); CHAIN(mul, 2, "*="); CHAIN(mul, 3, "*=");
	CHAIN(mul, 4, "*="); CHAIN(mul, 5, "*="); CHAIN(mul, 6, "*="); CHAIN(mul, 7, "*=");
	CHAIN(mul, 8, "*="); CHAIN(mul, 9, "*="); CHAIN(mul, 10, "*="); CHAIN(mul, 11, "*=");
	CHAIN(mul, 12, "*="); CHAIN(mul, 13, "*="); CHAIN(mul, 14, "*="); CHAIN(mul, 15, "*=");
	CHAIN(mul, 16, "*="); CHAIN(mul, 17, "*="); CHAIN(mul, 18, "*="); CHAIN(mul, 19, "*=");
	CHAIN(add, 0, "+="); CHAIN(add, 1, "+="); CHAIN(add, 2, "+="); CHAIN(add, 3, "+=");
	CHAIN(add, 4, "+="); CHAIN(add, 5, "+="); CHAIN(add, 6, "+="); CHAIN(add, 7, "+=");
	GUESS(x, 63);
	GUESS(x, 62);
	GUESS(x, 61);
	return 0;
}

static __always_inline int verdict(struct xdp_md *ctx, int failed)
{
	__u32 queue = ctx->rx_queue_index;
	struct counts *counts = bpf_map_lookup_elem(&rx_counts, &queue);

	if (unlikely(!counts))
		return XDP_ABORTED;
	counts->packets++;
	if (unlikely(failed)) {
		counts->aborted++;
		return XDP_ABORTED;
	}
	if (planted)
		planted_cost(counts);
	return action;
}

/* An EtherType below 0x600 is a length (IEEE 802.3): not a frame this tool sends. */
static __always_inline int bad_proto(__be16 proto)
{
	return __builtin_bswap16(proto) < ETH_P_802_3_MIN;
}

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/* Nothing but the verdict: what counting and planted costs are measured against. */
SEC("xdp.frags") int uncounted(struct xdp_md *ctx)
{
	return action;
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
