/* SPDX-License-Identifier: GPL-2.0-only */
/* The little that our programs need of the kernel's BPF interface, written by hand from include/uapi/linux/bpf.h and
 * include/uapi/linux/if_ether.h, so that a build needs clang and nothing else. */
#ifndef XDPLAB_BPF_H
#define XDPLAB_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define unlikely(x) __builtin_expect(!!(x), 0)
/* Kernel types are read by field name; the loader puts in this kernel's offsets (CO-RE). */
#define CORE __attribute__((preserve_access_index))
#define OFFSET_OF(type, field) __builtin_preserve_field_info(((type *)0)->field, 0)
#define FIELD_EXISTS(field) __builtin_preserve_field_info(field, 2)
/* A branch that is predicted wrongly half of the time where the bit is random; either way it comes to the same. */
#define GUESS(x, bit)                                                                                                  \
	do {                                                                                                           \
		__u64 guessed = 0;                                                                                     \
		if ((x) >> (bit) & 1)                                                                                  \
			asm volatile("%0 += 1" : "+r"(guessed));                                                       \
	} while (0)
#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define NULL ((void *)0)

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PROG_ARRAY = 3, BPF_MAP_TYPE_PERCPU_HASH = 5,
       BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_DEVMAP = 14, BPF_MAP_TYPE_CPUMAP = 16, BPF_MAP_TYPE_XSKMAP = 17,
       BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_RB_NO_WAKEUP = 1 };
enum { BPF_F_BROADCAST = 1 << 3, BPF_F_EXCLUDE_INGRESS = 1 << 4 };
enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)12;
static __u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*const bpf_probe_read_kernel)(void *dst, __u32 size, const void *src) = (void *)113;
static long (*const bpf_probe_read_kernel_str)(void *dst, __u32 size, const void *src) = (void *)115;
static void *(*const bpf_ringbuf_reserve)(void *map, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_xdp_load_bytes)(struct xdp_md *xdp, __u32 offset, void *buf, __u32 len) = (void *)189;
static long (*const bpf_xdp_store_bytes)(struct xdp_md *xdp, __u32 offset, void *buf, __u32 len) = (void *)190;

enum { ETH_ALEN = 6, ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86DD, ETH_P_8021Q = 0x8100, ETH_P_8021AD = 0x88A8,
       ETH_P_802_3_MIN = 0x0600 };
enum { IPPROTO_HOPOPTS = 0, IPPROTO_ICMP = 1, IPPROTO_TCP = 6, IPPROTO_UDP = 17, IPPROTO_ROUTING = 43,
       IPPROTO_FRAGMENT = 44, IPPROTO_ICMPV6 = 58, IPPROTO_DSTOPTS = 60 };

struct ethhdr {
	__u8 h_dest[ETH_ALEN];
	__u8 h_source[ETH_ALEN];
	__be16 h_proto;
} __attribute__((packed));

struct vlan_hdr {
	__be16 tci;
	__be16 proto;
};

struct iphdr {
	__u8 ihl_version;
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__be32 saddr;
	__be32 daddr;
};

struct ipv6hdr {
	__u8 version_class;
	__u8 flow_lbl[3];
	__be16 payload_len;
	__u8 nexthdr;
	__u8 hop_limit;
	__u8 saddr[16];
	__u8 daddr[16];
};

static __always_inline struct ethhdr *ethernet(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) > (void *)(long)ctx->data_end ? NULL : eth;
}

static __always_inline void swap_macs(struct ethhdr *eth)
{
	/* By 16 bits, to which frames are aligned: of a packed struct the compiler would take bytes. */
	__u16 *dest = (void *)eth->h_dest, *source = (void *)eth->h_source;
	__u16 mac[ETH_ALEN / 2] = {dest[0], dest[1], dest[2]};

	dest[0] = source[0];
	dest[1] = source[1];
	dest[2] = source[2];
	source[0] = mac[0];
	source[1] = mac[1];
	source[2] = mac[2];
}

#endif
