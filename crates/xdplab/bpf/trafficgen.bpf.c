// SPDX-License-Identifier: GPL-2.0-only
/* Run by BPF_PROG_TEST_RUN with live frames: sends traffic out of a device. What a run does not need is behind a constant
 * and removed by the verifier. Each thread has an object of its own and stays on one CPU, so the state needs no locks. */
#include "bpf.h"
#include "pace.h"

static long (*const bpf_xdp_adjust_tail)(struct xdp_md *xdp, int delta) = (void *)65;

/* Fits a live frame (a page less its headers), and no more than 2^12. */
enum { FRAME_MAX = 4080, LAST_MASK = 4095 };
/* Frames are sent in turn; 0: they are the one that the kernel is given. */
const volatile __u32 templates_count = 0;
/* Length of the frame that the kernel is given, the longest of all. */
const volatile __u32 longest = 0;
/* How many values each field takes in turn, and the first of them; 1 leaves the field as it is. */
const volatile __u32 dst_ports = 1, first_dst_port = 0;
const volatile __u32 src_ports = 1, first_src_port = 0;
const volatile __u32 dst_addrs = 1, first_dst_addr = 0;
const volatile __u32 src_addrs = 1, first_src_addr = 0;
/* Where these are, from the beginning of the frame; addresses: their last 4 bytes. */
const volatile __u32 udp_offset = 0, dst_addr_offset = 0, src_addr_offset = 0;
/* Where the checksum of the IP header is; 0: there is none (IPv6). */
const volatile __u32 ip_check_offset = 0;
/* Sums over what the checksums cover without the fields that vary, where there is one frame. */
const volatile __u32 udp_sum = 0, ip_sum = 0;
/* Bursts of so many frames leave as scheduled; 0: as fast as can be. */
const volatile __u32 burst = 0;
/* From burst to burst in ns and 2^-32 ns; the first leaves so many ns after the first run. */
const volatile __u64 schedule[3] = {};
/* Frames to send in a scheduled run. */
const volatile __u64 limit[1] = {};

struct template {
	__u32 len;
	/* Bytes from the beginning that are written into each frame: pages are recycled. */
	__u32 written;
	__u32 udp_sum;
	__u32 ip_sum;
	__u8 bytes[FRAME_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct template);
} templates SEC(".maps");

/* The device; by bpf_redirect() the kernel would look it up for each frame. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} target SEC(".maps");

/* Where the thread is. */
struct state {
	__u64 packets; /* read by user space as the first word */
	__u64 scheduled;
	struct pacer pacer;
	__u32 template;
	__u32 dst_port, src_port;
	__u32 dst_addr, src_addr;
} state = {};

struct udphdr {
	__be16 source;
	__be16 dest;
	__be16 len;
	__u16 check;
};

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The next of `count` values from `first` on. */
static __always_inline __u32 step(__u32 *at, __u32 first, __u32 count)
{
	__u32 value = first + *at;

	*at = *at + 1 < count ? *at + 1 : 0;
	return value;
}

static __always_inline __u32 words(__be32 value)
{
	return (value & 0xffff) + (value >> 16);
}

/* Writes the fields that vary and the checksums that cover them: only stores, nothing is read from the frame. */
static __always_inline int vary(struct xdp_md *ctx, __u32 udp_base, __u32 ip_base)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = data + udp_offset;
	__u32 sum = 0;

	if (unlikely((void *)(udp + 1) > end))
		return -1;
	if (dst_addrs > 1) {
		__be32 addr = __builtin_bswap32(step(&state.dst_addr, first_dst_addr, dst_addrs));

		*(__be32 *)(data + dst_addr_offset) = addr;
		sum += words(addr);
	}
	if (src_addrs > 1) {
		__be32 addr = __builtin_bswap32(step(&state.src_addr, first_src_addr, src_addrs));

		*(__be32 *)(data + src_addr_offset) = addr;
		sum += words(addr);
	}
	if (ip_check_offset && (dst_addrs > 1 || src_addrs > 1))
		*(__u16 *)(data + ip_check_offset) = ~fold(sum + ip_base);
	if (dst_ports > 1) {
		udp->dest = bpf_htons((__u16)step(&state.dst_port, first_dst_port, dst_ports));
		sum += udp->dest;
	}
	if (src_ports > 1) {
		udp->source = bpf_htons((__u16)step(&state.src_port, first_src_port, src_ports));
		sum += udp->source;
	}
	sum = (__u16)~fold(sum + udp_base);
	udp->check = sum ? sum : 0xffff; /* 0 stands for no checksum (RFC 768) */
	return 0;
}

static __always_inline int varies(void)
{
	return dst_ports > 1 || src_ports > 1 || dst_addrs > 1 || src_addrs > 1;
}

/* Makes the frame the next template. */
static __always_inline int write_template(struct xdp_md *ctx)
{
	__u32 index = state.template, last;
	struct template *next = bpf_map_lookup_elem(&templates, &index);

	if (unlikely(!next))
		return -1;
	state.template = index + 1 < templates_count ? index + 1 : 0;
	if (next->len != longest && bpf_xdp_adjust_tail(ctx, (int)next->len - (int)longest))
		return -1;
	/* Where nothing is to be written, there is no last byte. From it the verifier knows that there is one to write; from a
	 * comparison with 0, as the compiler has it, those of Linux 6.1 and 6.12 do not. */
	last = (next->written - 1) & LAST_MASK;
	if (last < FRAME_MAX && bpf_xdp_store_bytes(ctx, 0, next->bytes, last + 1))
		return -1;
	return varies() ? vary(ctx, next->udp_sum, next->ip_sum) : 0;
}

/* Waits until the next frame is due. Not 0: it is not yet, or all have been sent. */
static __always_inline int wait(void)
{
	__u64 left = limit[0] - state.scheduled;

	if (!left || !is_time(&state.pacer, schedule[2]))
		return -1;
	depart(&state.pacer, left < burst ? left : burst, schedule[0], schedule[1]);
	state.scheduled++;
	return 0;
}

SEC("xdp.frags") int transmit(struct xdp_md *ctx)
{
	if (burst && wait())
		return XDP_DROP;
	if (templates_count) {
		if (unlikely(write_template(ctx)))
			return XDP_ABORTED;
	} else if (varies() && unlikely(vary(ctx, udp_sum, ip_sum))) {
		return XDP_ABORTED;
	}
	state.packets++;
	return bpf_redirect_map(&target, 0, XDP_ABORTED);
}

char _license[] SEC("license") = "GPL";
