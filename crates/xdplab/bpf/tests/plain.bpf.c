// SPDX-License-Identifier: GPL-2.0-only
/* Programs that take no packets in fragments, and tail calls. */
#include "../bpf.h"

int last(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	int (*values[])(struct xdp_md *ctx);
} filled SEC(".maps") = {.values = {[2] = last}};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} empty SEC(".maps");

SEC("xdp") int last(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp") int tail_call(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &filled, 2);
	return XDP_ABORTED;
}

SEC("xdp") int tail_call_nowhere(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &empty, 0);
	return XDP_DROP;
}

/* No bounds are checked. */
SEC("xdp") int refused(struct xdp_md *ctx)
{
	return *(__u8 *)(long)ctx->data;
}

char _license[] SEC("license") = "GPL";
