// SPDX-License-Identifier: GPL-2.0-only
/* Run by BPF_PROG_TEST_RUN with live frames: sends each frame out of a device. `sink` is for the other direction. */
#include "bpf.h"

const volatile __u32 target_ifindex = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

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
	return count(bpf_redirect(target_ifindex, 0));
}

/* Takes what the device under test sends back (XDP_TX), and gives a veth end the NAPI it needs for that. */
SEC("xdp.frags") int sink(struct xdp_md *ctx)
{
	return count(XDP_DROP);
}

char _license[] SEC("license") = "GPL";
