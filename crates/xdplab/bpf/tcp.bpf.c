// SPDX-License-Identifier: GPL-2.0-only
/* One TCP flow whose segments are made in the kernel. A socket makes the connection; from then on `send`, run by
 * BPF_PROG_TEST_RUN on live frames, makes the segments, and `receive`, on the interface, takes the acknowledgements, which the
 * socket no longer sees.
 *
 * Each map has one writer while the flow runs, so that no lock is needed: user space, `receive`, and `send`, but for the
 * congestion window, which both programs set; whichever value stays is one of the two. Members have 64 bits, also those that
 * hold a sequence number, so that each is read and written at once. */
#include "bpf.h"
#include "pace.h"

#define bpf_ntohl(x) __builtin_bswap32(x)
#define READ(x) (*(volatile __u64 *)&(x))
#define WRITE(x, value) (*(volatile __u64 *)&(x) = (value))

static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160; /* kernel 5.11 */

/* Of each frame: Ethernet, IPv6 and TCP headers, in whole words. */
enum { HEADER_WORDS = 10 };
enum { TCP_FIN = 1 << 0, TCP_SYN = 1 << 1, TCP_RST = 1 << 2, TCP_ACK = 1 << 4 };
enum { CLOSED_BY_FIN = 1, CLOSED_BY_RST = 2 };
/* The shortest retransmission timeout that Linux uses (TCP_RTO_MIN, include/net/tcp.h). */
#define RTO_NS 200000000ULL
/* Duplicates that stand for a loss (RFC 5681, section 3.2). */
enum { DUPLICATES = 3 };

struct tcphdr {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack_seq;
	__u8 doff; /* In the upper four bits, in words of 32. */
	__u8 flags;
	__be16 window;
	__u16 check;
	__be16 urg_ptr;
};

/* Written by user space: before the handshake what to look for, after it how to go on. */
struct plan {
	__u64 ether_type; /* As it stands in the frame. */
	__u64 peer[2]; /* The peer's address as it stands in the frame; IPv4 has the first four bytes. */
	__u64 ports; /* The peer's and ours as they stand in frames from the peer, as one number. */
	__u64 running;
	__u64 tcp_offset;
	__u64 payload; /* Bytes of each segment. */
	__u64 partial_sum; /* Of everything that the checksum covers but seq and ack_seq. */
	__u64 wscale;
	__u64 packet_limit; /* Segments to send, those sent again among them; 0 for none. */
	__u64 byte_limit; /* Bytes to send once; 0 for none. */
	__u64 burst; /* So many segments leave as scheduled; 0: as fast as can be. */
	__u64 gap_ns; /* From burst to burst, and 2^-32 ns. */
	__u64 gap_fraction;
	__u64 header[HEADER_WORDS];
};

/* Written by `receive`. */
struct acks {
	__u64 handshakes; /* SYN-ACKs. */
	__u64 first; /* The sequence number of our first byte. */
	__u64 rcv_next; /* That of the peer's next byte. */
	__u64 peer_mac;
	__u64 own_mac;
	__u64 acked; /* That of our first byte that is not acknowledged. */
	__u64 last_ack;
	__u64 window; /* What the peer has announced, in bytes. */
	__u64 acked_bytes;
	__u64 segments; /* From the peer. */
	__u64 duplicates; /* Acknowledgements of nothing new. */
	__u64 in_a_row;
	__u64 losses; /* Taken from so many in a row. */
	__u64 recover; /* Where the sender was at the last loss. */
	__u64 cwnd;
	__u64 ssthresh;
	__u64 closed;
};

/* Written by `send`. */
struct sends {
	__u64 packets;
	__u64 new_bytes; /* Bytes sent, each once. */
	__u64 retransmits;
	__u64 timeouts;
	__u64 blocked; /* Frames that were not sent, since the window was full or nothing was left. */
	__u64 next;
	__u64 high; /* The first byte that was never sent. */
	__u64 losses; /* Those that were acted upon. */
	__u64 seen_acked;
	__u64 moved_at;
	struct pacer pacer;
};

#define ONE(member)                                                                                                    \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                      \
		__uint(max_entries, 1);                                                                                \
		__type(key, __u32);                                                                                    \
		__type(value, struct member);                                                                          \
	} member##_map SEC(".maps")
ONE(plan);
ONE(acks);
ONE(sends);

const volatile __u32 target_ifindex = 0;

/* The same for each CPU, as every generator's program has it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

static __always_inline int after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline struct tcphdr *from_peer(struct xdp_md *ctx, const struct plan *plan, __u32 *payload)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = ethernet(ctx);
	struct tcphdr *tcp;
	__u32 length;

	if (!eth || eth->h_proto != plan->ether_type)
		return NULL;
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end || ip->nexthdr != IPPROTO_TCP)
			return NULL;
		for (int i = 0; i < 4; i++)
			if (((__u32 *)ip->saddr)[i] != ((__u32 *)plan->peer)[i])
				return NULL;
		length = bpf_htons(ip->payload_len);
	} else {
		struct iphdr *ip = (void *)(eth + 1);

		tcp = (void *)(ip + 1);
		/* Without options, and no fragment. */
		if ((void *)(tcp + 1) > end || ip->ihl_version != 0x45 || ip->protocol != IPPROTO_TCP ||
		    (ip->frag_off & bpf_htons(0x3fff)) || ip->saddr != *(__u32 *)plan->peer)
			return NULL;
		length = bpf_htons(ip->tot_len) - sizeof(*ip);
	}
	if (*(__u32 *)tcp != (__u32)plan->ports)
		return NULL;
	*payload = length - (tcp->doff >> 4) * 4;
	return tcp;
}

static __always_inline __u64 mac(const __u8 *address)
{
	__u64 value = 0;

	for (int i = 0; i < ETH_ALEN; i++)
		((__u8 *)&value)[i] = address[i];
	return value;
}

static __always_inline void handshake(struct xdp_md *ctx, const struct tcphdr *tcp, struct acks *acks)
{
	struct ethhdr *eth = ethernet(ctx);

	if (!eth)
		return;
	acks->first = acks->acked = bpf_ntohl(tcp->ack_seq);
	acks->rcv_next = (__u32)(bpf_ntohl(tcp->seq) + 1);
	acks->peer_mac = mac(eth->h_source);
	acks->own_mac = mac(eth->h_dest);
	acks->handshakes++;
}

static __always_inline void grow(struct acks *acks, __u64 bytes, __u64 payload)
{
	__u64 cwnd = READ(acks->cwnd);

	/* RFC 5681, section 3.1: by what was acknowledged, then by a segment in the time of a window. */
	if (cwnd >= acks->ssthresh)
		bytes = cwnd ? payload * bytes / cwnd : payload;
	if (cwnd < (1ULL << 31))
		WRITE(acks->cwnd, cwnd + bytes);
}

static __always_inline __u64 half(__u64 cwnd, __u64 payload)
{
	return cwnd / 2 > 2 * payload ? cwnd / 2 : 2 * payload;
}

static __always_inline void acknowledge(const struct tcphdr *tcp, const struct plan *plan, __u32 payload, struct acks *acks,
					const struct sends *sends)
{
	__u32 ack = bpf_ntohl(tcp->ack_seq), acked = acks->acked, high = READ(sends->high);
	__u64 window = (__u64)bpf_htons(tcp->window) << (plan->wscale & 15);

	WRITE(acks->last_ack, ack);
	if (after(acked, ack))
		return; /* It was overtaken. */
	if (after(ack, acked) && !after(ack, high)) {
		WRITE(acks->acked_bytes, acks->acked_bytes + (__u32)(ack - acked));
		WRITE(acks->acked, ack);
		acks->in_a_row = 0;
		grow(acks, (__u32)(ack - acked), plan->payload);
	} else if (ack == acked && !payload && window <= acks->window && high != acked) {
		WRITE(acks->duplicates, acks->duplicates + 1);
		if (++acks->in_a_row == DUPLICATES && !after(acks->recover, acked)) {
			acks->recover = high;
			acks->ssthresh = half(READ(acks->cwnd), plan->payload);
			WRITE(acks->cwnd, acks->ssthresh);
			WRITE(acks->losses, acks->losses + 1);
		}
	}
	WRITE(acks->window, window);
}

SEC("xdp.frags") int receive(struct xdp_md *ctx)
{
	__u32 zero = 0, payload;
	struct plan *plan = bpf_map_lookup_elem(&plan_map, &zero);
	struct acks *acks = bpf_map_lookup_elem(&acks_map, &zero);
	struct sends *sends = bpf_map_lookup_elem(&sends_map, &zero);
	struct tcphdr *tcp;

	if (!plan || !acks || !sends)
		return XDP_PASS;
	tcp = from_peer(ctx, plan, &payload);
	if (!tcp)
		return XDP_PASS;
	if (!READ(plan->running)) {
		if ((tcp->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			handshake(ctx, tcp, acks);
		return XDP_PASS;
	}
	WRITE(acks->segments, acks->segments + 1);
	if (payload && bpf_ntohl(tcp->seq) == (__u32)acks->rcv_next)
		WRITE(acks->rcv_next, (__u32)(acks->rcv_next + payload));
	if (tcp->flags & TCP_RST)
		WRITE(acks->closed, CLOSED_BY_RST);
	else if (tcp->flags & TCP_FIN && !acks->closed)
		WRITE(acks->closed, CLOSED_BY_FIN);
	if (tcp->flags & TCP_ACK)
		acknowledge(tcp, plan, payload, acks, sends);
	return XDP_DROP;
}

/* Whether a segment is to be sent although the window is full or nothing is left: the first that is not acknowledged, after
 * some time without an acknowledgement. To a window that is closed it is a probe. */
static __always_inline int is_late(const struct plan *plan, struct acks *acks, struct sends *sends)
{
	__u64 now = bpf_ktime_get_coarse_ns(), acked = READ(acks->acked);

	if (sends->seen_acked != acked || !sends->moved_at) {
		sends->seen_acked = acked;
		sends->moved_at = now;
		return 0;
	}
	if (now - sends->moved_at < RTO_NS)
		return 0;
	sends->moved_at = now;
	WRITE(sends->timeouts, sends->timeouts + 1);
	sends->next = acked;
	/* RFC 5681, section 3.1: one segment. */
	acks->ssthresh = half(READ(acks->cwnd), plan->payload);
	WRITE(acks->cwnd, plan->payload);
	return 1;
}

/* The sequence number of the segment to send next, if one is to be sent. */
static __always_inline int next_segment(const struct plan *plan, struct acks *acks, struct sends *sends, __u32 *seq)
{
	__u32 payload = plan->payload, acked = READ(acks->acked), high = sends->high, end;
	__u64 window = READ(acks->window), cwnd = READ(acks->cwnd);
	__s32 fresh;

	if (!READ(plan->running) || READ(acks->closed) || (plan->packet_limit && sends->packets >= plan->packet_limit))
		return 0;
	if (sends->losses != READ(acks->losses)) {
		/* All again from there: what the receiver has already, its next acknowledgement skips. */
		sends->losses = READ(acks->losses);
		sends->next = acked;
	}
	if (after(acked, sends->next))
		sends->next = acked;
	if (plan->byte_limit && sends->new_bytes >= plan->byte_limit && (__u32)sends->next == high) {
		if (acked == high || !is_late(plan, acks, sends))
			return 0;
	} else if ((__u32)(sends->next - acked) + payload > (window < cwnd ? window : cwnd)) {
		if (!is_late(plan, acks, sends))
			return 0;
	}
	*seq = sends->next;
	end = *seq + payload;
	sends->next = end;
	fresh = end - high;
	if (fresh > 0) {
		WRITE(sends->high, end);
		WRITE(sends->new_bytes, sends->new_bytes + fresh);
	}
	if (fresh < (__s32)payload)
		WRITE(sends->retransmits, sends->retransmits + 1);
	WRITE(sends->packets, sends->packets + 1);
	return 1;
}

static __always_inline __u16 checksum(__u64 partial, __be32 seq, __be32 ack_seq)
{
	__u32 sum = partial + (seq & 0xffff) + (seq >> 16) + (ack_seq & 0xffff) + (ack_seq >> 16);

	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

SEC("xdp.frags") int send(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 zero = 0, seq;
	struct plan *plan = bpf_map_lookup_elem(&plan_map, &zero);
	struct acks *acks = bpf_map_lookup_elem(&acks_map, &zero);
	struct sends *sends = bpf_map_lookup_elem(&sends_map, &zero);
	__u64 *count = bpf_map_lookup_elem(&packets, &zero), *words = data;
	struct tcphdr *tcp;

	if (!plan || !acks || !sends || !count || (void *)(words + HEADER_WORDS) > data_end)
		return XDP_ABORTED;
	tcp = data + (plan->tcp_offset & 63);
	if ((void *)(tcp + 1) > data_end)
		return XDP_ABORTED;
	if (plan->burst && !is_time(&sends->pacer, 0))
		return XDP_DROP;
	if (!next_segment(plan, acks, sends, &seq)) {
		WRITE(sends->blocked, sends->blocked + 1);
		return XDP_DROP;
	}
	if (plan->burst)
		depart(&sends->pacer, plan->burst, plan->gap_ns, plan->gap_fraction);
	/* Pages are recycled, and with them what receivers wrote into headers. */
	for (int i = 0; i < HEADER_WORDS; i++)
		words[i] = plan->header[i];
	tcp->seq = bpf_ntohl(seq);
	tcp->ack_seq = bpf_ntohl((__u32)READ(acks->rcv_next));
	tcp->check = checksum(plan->partial_sum, tcp->seq, tcp->ack_seq);
	(*count)++;
	return bpf_redirect(target_ifindex, 0);
}

char _license[] SEC("license") = "GPL";
