// SPDX-License-Identifier: GPL-2.0-only
/* Cuts the traffic of a device into slices and gives each slice to the program that the schedule names.
 *
 * A slice is `slice_packets` packets of one program, timed between two readings of the clock; the first `warmup_packets`
 * after a switch are handled by the new program but not timed. The schedule is drawn by user space beforehand, so a run
 * can be told again from its seed; the kernel only walks it. Nobody is woken: user space drains the ring when it likes. */
#include "bpf.h"

const volatile __u32 slice_packets = 1024;
/* At least 1. */
const volatile __u32 warmup_packets = 64;
/* Length of the schedule, at least 1. */
const volatile __u32 schedule_len = 1;

struct slice {
	__u64 start_ns;
	__u64 stop_ns;
	__u64 position; /* how many slices this CPU had begun before; the schedule's entry is position % schedule_len */
	__u32 cpu;
	__u32 packets;
};

struct state {
	__u32 seen; /* packets since the switch */
	__u32 edge; /* value of `seen` at which something is to be done; 0 before the first packet */
	__u32 program;
	__u32 index; /* position % schedule_len */
	__u64 position;
	__u64 start_ns;
	__u64 lost; /* slices that found the ring full */
	__u64 misses; /* packets whose program was not there */
	__u64 before; /* packets before the switch; with `seen`, all packets of this CPU */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} schedule SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} slices SEC(".maps");

static __always_inline void begin(struct state *state)
{
	__u32 *program = bpf_map_lookup_elem(&schedule, &state->index);

	if (program)
		state->program = *program;
	state->before += state->seen;
	state->seen = 0;
	state->edge = warmup_packets;
}

static __always_inline void finish(struct state *state)
{
	__u64 now = bpf_ktime_get_ns();
	struct slice *slice = bpf_ringbuf_reserve(&slices, sizeof(*slice), 0);

	if (slice) {
		slice->start_ns = state->start_ns;
		slice->stop_ns = now;
		slice->position = state->position;
		slice->cpu = bpf_get_smp_processor_id();
		slice->packets = slice_packets;
		bpf_ringbuf_submit(slice, BPF_RB_NO_WAKEUP);
	} else {
		state->lost++;
	}
	state->position++;
	state->index = state->index + 1 < schedule_len ? state->index + 1 : 0;
}

static __attribute__((noinline)) int at_edge(struct state *state)
{
	if (!state)
		return 0;
	if (state->edge == warmup_packets) {
		state->edge = warmup_packets + slice_packets;
		state->start_ns = bpf_ktime_get_ns();
		return 0;
	}
	if (state->edge)
		finish(state);
	begin(state);
	return 0;
}

SEC("xdp.frags") int dispatch(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct state *state = bpf_map_lookup_elem(&states, &zero);

	if (unlikely(!state))
		return XDP_ABORTED;
	if (unlikely(++state->seen >= state->edge))
		at_edge(state);
	bpf_tail_call(ctx, &programs, state->program);
	state->misses++;
	return XDP_ABORTED;
}

char _license[] SEC("license") = "GPL";
