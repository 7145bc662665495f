// SPDX-License-Identifier: GPL-2.0-only
/* Redirects packets to other CPUs: one program for each way to choose the CPU, and the programs that a CPU may run on what
 * it gets. The loader fills `cpus` and `cpu_map` before a program is attached.
 *
 * A packet is counted once, per CPU and RX queue, by its verdict: redirected, dropped, passed or aborted. */
#include "bpf.h"

enum { MAX_CPUS = 1024 };

/* The CPUs to choose from, in the order given; one that stands twice gets twice as much. */
const volatile __u64 cpus[MAX_CPUS] = {};
const volatile __u32 cpu_count = 1;
/* The MAC address of the device that the remote program sends to, as it lies in memory. */
const volatile __u64 tx_mac[1] = {};

struct cpumap_value {
	__u32 qsize;
	__s32 prog_fd;
};

struct devmap_value {
	__u32 ifindex;
	__s32 prog_fd;
};

/* Sized by the loader to the possible CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpumap_value);
} cpu_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct devmap_value);
} tx_port SEC(".maps");

struct counts {
	__u64 aborted;
	__u64 dropped;
	__u64 passed;
	__u64 redirected;
	__u64 next; /* round-robin's place in `cpus` */
};

/* Key: RX queue index; the loader sizes it to the device's RX queues. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} rx_counts SEC(".maps");

/* What a program needs to know of a packet to choose the CPU. */
struct packet {
	__u32 addresses; /* the same in both directions */
	__u16 source;
	__u16 dest;
	__u8 protocol; /* of IP; 0 for everything else */
	__u8 has_ports;
	__u8 fragment;
};

static __always_inline struct counts *counts_of(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;

	return bpf_map_lookup_elem(&rx_counts, &queue);
}

static __always_inline int to_cpu(struct counts *counts, __u32 index)
{
	int verdict;

	/* The compiler knows that the index is in range and would leave out what proves it to the verifier. */
	asm volatile("" : "+r"(index));
	verdict = bpf_redirect_map(&cpu_map, cpus[index & (MAX_CPUS - 1)], XDP_ABORTED);
	if (unlikely(verdict != XDP_REDIRECT))
		counts->aborted++;
	else
		counts->redirected++;
	return verdict;
}

static __always_inline int aborted(struct counts *counts)
{
	counts->aborted++;
	return XDP_ABORTED;
}

static __always_inline int dropped(struct counts *counts)
{
	counts->dropped++;
	return XDP_DROP;
}

static __always_inline int passed(struct counts *counts)
{
	counts->passed++;
	return XDP_PASS;
}

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* Every fragment of a datagram is taken to have no ports, so that all of them go the same way. */
static __always_inline void *parse_ipv4(void *at, void *end, struct packet *packet)
{
	struct iphdr *ip = at;

	if ((void *)(ip + 1) > end || (ip->ihl_version & 0xf) < 5)
		return NULL;
	packet->protocol = ip->protocol;
	packet->addresses = ip->saddr ^ ip->daddr;
	packet->fragment = (ip->frag_off & bpf_htons(0x3fff)) != 0;
	return at + (ip->ihl_version & 0xf) * 4;
}

struct ipv6_extension {
	__u8 nexthdr;
	__u8 hdrlen;
};

static __always_inline int is_skipped(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_DSTOPTS ||
	       protocol == IPPROTO_FRAGMENT;
}

static __always_inline void *parse_ipv6(void *at, void *end, struct packet *packet)
{
	struct ipv6hdr *ip = at;
	__u32 words[8], i;

	if ((void *)(ip + 1) > end)
		return NULL;
	__builtin_memcpy(words, ip->saddr, sizeof(words));
	packet->addresses = words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
	packet->protocol = ip->nexthdr;
	at = ip + 1;
	for (i = 0; i < 4 && is_skipped(packet->protocol); i++) {
		struct ipv6_extension *extension = at;
		int fragment = packet->protocol == IPPROTO_FRAGMENT;

		if ((void *)(extension + 1) > end)
			return NULL;
		packet->fragment |= fragment;
		packet->protocol = extension->nexthdr;
		at += fragment ? 8 : (extension->hdrlen + 1) * 8;
	}
	return at;
}

/* Returns 0 for what is no Ethernet II frame or is too short for what it says it is. */
static __always_inline int parse(struct xdp_md *ctx, struct packet *packet)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = at;
	__be16 proto, *ports;
	int i;

	if ((void *)(eth + 1) > end || __builtin_bswap16(eth->h_proto) < ETH_P_802_3_MIN)
		return 0;
	proto = eth->h_proto;
	at = eth + 1;
	for (i = 0; i < 2 && is_vlan(proto); i++) {
		struct vlan_hdr *vlan = at;

		if ((void *)(vlan + 1) > end)
			return 0;
		proto = vlan->proto;
		at = vlan + 1;
	}
	if (proto == bpf_htons(ETH_P_IP))
		at = parse_ipv4(at, end, packet);
	else if (proto == bpf_htons(ETH_P_IPV6))
		at = parse_ipv6(at, end, packet);
	else
		return 1;
	if (!at)
		return 0;
	if (!has_ports(packet->protocol) || packet->fragment)
		return 1;
	ports = at;
	if ((void *)(ports + 2) > end)
		return 0;
	packet->has_ports = 1;
	packet->source = __builtin_bswap16(ports[0]);
	packet->dest = __builtin_bswap16(ports[1]);
	return 1;
}

/* Where a layer-4 protocol stands in the list: TCP and everything unknown first, UDP second, ICMP third, and around again
 * if the list is shorter. */
static __always_inline __u32 index_of(__u8 protocol)
{
	if (protocol == IPPROTO_UDP)
		return 1 % cpu_count;
	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return 2 % cpu_count;
	return 0;
}

/* The finalizer of MurmurHash3 (A. Appleby, public domain): each bit of the input reaches each bit of the result. */
static __always_inline __u32 mix(__u32 hash)
{
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ hash >> 16;
}

SEC("xdp.frags") int no_touch(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);

	return counts ? to_cpu(counts, 0) : XDP_ABORTED;
}

SEC("xdp.frags") int touch(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct counts *counts = counts_of(ctx);

	if (unlikely(!counts))
		return XDP_ABORTED;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return aborted(counts);
	return __builtin_bswap16(eth->h_proto) < ETH_P_802_3_MIN ? dropped(counts) : to_cpu(counts, 0);
}

SEC("xdp.frags") int round_robin(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);
	__u32 index;

	if (unlikely(!counts))
		return XDP_ABORTED;
	index = counts->next;
	counts->next = index + 1 < cpu_count ? index + 1 : 0;
	return to_cpu(counts, index);
}

SEC("xdp.frags") int l4_proto(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);
	struct packet packet = {};

	if (unlikely(!counts))
		return XDP_ABORTED;
	return parse(ctx, &packet) ? to_cpu(counts, index_of(packet.protocol)) : passed(counts);
}

enum { PORT_DISCARD = 9 };

SEC("xdp.frags") int l4_filter(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);
	struct packet packet = {};

	if (unlikely(!counts))
		return XDP_ABORTED;
	if (!parse(ctx, &packet))
		return passed(counts);
	if (packet.protocol == IPPROTO_UDP && packet.has_ports && packet.dest == PORT_DISCARD)
		return dropped(counts);
	return to_cpu(counts, index_of(packet.protocol));
}

/* The same for both directions of a flow. */
SEC("xdp.frags") int l4_hash(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);
	struct packet packet = {};
	__u32 hash;

	if (unlikely(!counts))
		return XDP_ABORTED;
	if (!parse(ctx, &packet))
		return passed(counts);
	if (!packet.protocol)
		return to_cpu(counts, 0);
	hash = mix(packet.addresses) ^ mix((__u32)packet.source + packet.dest + ((__u32)packet.protocol << 24));
	return to_cpu(counts, mix(hash) % cpu_count);
}

SEC("xdp.frags") int l4_sport(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);
	struct packet packet = {};

	if (unlikely(!counts))
		return XDP_ABORTED;
	return parse(ctx, &packet) ? to_cpu(counts, packet.source % cpu_count) : passed(counts);
}

SEC("xdp.frags") int l4_dport(struct xdp_md *ctx)
{
	struct counts *counts = counts_of(ctx);
	struct packet packet = {};

	if (unlikely(!counts))
		return XDP_ABORTED;
	return parse(ctx, &packet) ? to_cpu(counts, packet.dest % cpu_count) : passed(counts);
}

SEC("xdp.frags/cpumap") int remote_drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp.frags/cpumap") int remote_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Back to whom the packet came from, through the other device. */
SEC("xdp.frags/cpumap") int remote_redirect(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u64 mac = tx_mac[0];

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, &mac, ETH_ALEN);
	return bpf_redirect_map(&tx_port, 0, XDP_DROP);
}

char _license[] SEC("license") = "GPL";
