// SPDX-License-Identifier: GPL-2.0-only
/* Run by BPF_PROG_TEST_RUN with live frames: sends each frame out of a device. `sink` is for the other direction. */
#include "bpf.h"

const volatile __u32 target_ifindex = 0;
/* Pages are recycled with what the device's programs wrote into them. Each frame gets its first words back from here, where
 * that would matter. */
enum { RESTORE_WORDS_MAX = 16 };
const volatile __u32 restore_words = 0;
const volatile __u64 original[RESTORE_WORDS_MAX] = {};
/* UDP source ports, from first_port on in turn, so that there are so many flows; 1 leaves frames as they are. */
const volatile __u32 flows = 1;
const volatile __u32 first_port = 0;
const volatile __u32 port_offset = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} next_flow SEC(".maps");

#define RESTORE(n)                                                                                                     \
	if (restore_words > (n))                                                                                       \
	words[n] = original[n]

static __always_inline void restore(struct xdp_md *ctx)
{
	__u64 *words = (void *)(long)ctx->data;

	if ((void *)words + restore_words * sizeof(*words) > (void *)(long)ctx->data_end)
		return;
	/* Each branch is on a constant, so the verifier removes it. */
	RESTORE(0); RESTORE(1); RESTORE(2); RESTORE(3); RESTORE(4); RESTORE(5); RESTORE(6); RESTORE(7);
	RESTORE(8); RESTORE(9); RESTORE(10); RESTORE(11); RESTORE(12); RESTORE(13); RESTORE(14); RESTORE(15);
}

struct udphdr {
	__be16 source;
	__be16 dest;
	__be16 len;
	__u16 check;
};

/* The next source port, with the checksum brought up to date as in RFC 1624, equation 3. */
static __always_inline void vary(struct xdp_md *ctx)
{
	struct udphdr *udp = (void *)(long)ctx->data + port_offset;
	__u32 zero = 0, sum;
	__u32 *flow = bpf_map_lookup_elem(&next_flow, &zero);
	__be16 source;

	if (unlikely(!flow || (void *)(udp + 1) > (void *)(long)ctx->data_end))
		return;
	source = bpf_htons((__u16)(first_port + *flow));
	*flow = *flow + 1 < flows ? *flow + 1 : 0;
	sum = (__u16)~udp->check + (__u16)~udp->source + source;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~(sum + (sum >> 16)) & 0xffff;
	udp->source = source;
	udp->check = sum ? sum : 0xffff; /* 0 stands for no checksum (RFC 768) */
}

static __always_inline int count(int action)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&packets, &zero);

	if (unlikely(!value))
		return XDP_ABORTED;
	(*value)++;
	return action;
}

SEC("xdp.frags") int send(struct xdp_md *ctx)
{
	if (restore_words)
		restore(ctx);
	if (flows > 1)
		vary(ctx);
	return count(bpf_redirect(target_ifindex, 0));
}

/* Takes what the device under test sends back (XDP_TX), and gives a veth end the NAPI it needs for that. */
SEC("xdp.frags") int sink(struct xdp_md *ctx)
{
	return count(XDP_DROP);
}

char _license[] SEC("license") = "GPL";
