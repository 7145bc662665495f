// SPDX-License-Identifier: GPL-2.0-only
/* An object as a user may bring it: several XDP programs that take fragments, and beside them what must not get in their
 * way. */
#include "../bpf.h"

const volatile __u32 multiplications = 0;
const volatile __u8 verdict = XDP_DROP;
const volatile __u64 seed = 1;
const volatile __u32 table[3] = {};
__u64 result;

/* No two steps can be made one. */
#define STEP x = (x ^ x >> 29) * 6364136223846793005ULL
#define MUL8(n)                                                                                                        \
	if (multiplications > (n)) {                                                                                   \
		STEP; STEP; STEP; STEP; STEP; STEP; STEP; STEP;                                                        \
	}

/* Costs as much as it is told to, in steps of 8 that depend on each other, and returns what it is told to. */
SEC("xdp.frags") int work(struct xdp_md *ctx)
{
	__u64 x = seed + ctx->rx_queue_index;

	MUL8(0) MUL8(8) MUL8(16) MUL8(24) MUL8(32) MUL8(40) MUL8(48) MUL8(56)
	result = x + table[0];
	return verdict;
}

/* Gives up once it has seen the same frame 64 times. */
SEC("xdp.frags") int count_down(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end || !ip->ttl)
		return XDP_ABORTED;
	ip->ttl--;
	return XDP_DROP;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
} left_to_loader SEC(".maps");

SEC("xdp.frags") int sized(struct xdp_md *ctx)
{
	__u32 last = 2;

	return bpf_map_lookup_elem(&left_to_loader, &last) ? XDP_DROP : XDP_ABORTED;
}

enum { LIBBPF_PIN_BY_NAME = 1 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u64);
} xdplab_test_pinned SEC(".maps");

SEC("xdp.frags") int pinned(struct xdp_md *ctx)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&xdplab_test_pinned, &zero) ? XDP_DROP : XDP_ABORTED;
}

SEC("xdp.frags/cpumap") int behind_cpumap(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* What the kernel does not have, in sections that the loader does not know. */
struct no_such_type {
	int field;
} CORE;

SEC("fmod_ret/no_such_function") int modify(__u64 *ctx)
{
	return ((struct no_such_type *)ctx[0])->field;
}

SEC("tp_btf/no_such_tracepoint") int trace(__u64 *ctx)
{
	return ((struct no_such_type *)ctx[0])->field;
}

/* As libxdp's macros leave them. */
struct {
	__uint(priority, 10);
	__uint(XDP_PASS, 1);
} _work SEC(".xdp_run_config");
int dispatcher_version SEC("xdp_metadata") = 1;

char _license[] SEC("license") = "GPL";
