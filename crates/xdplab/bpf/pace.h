/* SPDX-License-Identifier: GPL-2.0-only */
/* When frames leave: in bursts, at times that follow from the first one and not from how late the last was. For programs that
 * BPF_PROG_TEST_RUN runs on live frames; each thread has an object of its own, so nothing here needs a lock. After bpf.h. */
#ifndef XDPLAB_PACE_H
#define XDPLAB_PACE_H

static long (*const bpf_loop)(__u32 loops, void *callback, void *context, __u64 flags) = (void *)181;

/* Steps of a wait in one run, some 50 us: then the kernel gets its chance to see signals and to let others run. */
enum { WAIT_STEPS = 2048 };
/* Buckets of the gaps between departures: each ns up to 255, then 128 for each doubling, up to 4 s. */
enum { GAP_BUCKETS = 3456 };

struct gaps {
	__u64 bursts;
	__u64 first_ns;
	__u64 last_ns;
	__u64 buckets[GAP_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gaps);
} gaps SEC(".maps");

struct pacer {
	__u64 due_ns;
	__u64 due_fraction; /* In 2^-32 ns. */
	__u64 now_ns;
	__u64 in_burst;
};

struct wait {
	__u64 due_ns;
	__u64 now_ns;
};

static long is_due(__u64 index, struct wait *wait)
{
	wait->now_ns = bpf_ktime_get_ns();
	return wait->now_ns >= wait->due_ns;
}

/* Waits until the next frame is due, for a while; the first is due so many ns after the first call. */
static __always_inline int is_time(struct pacer *pacer, __u64 first_after_ns)
{
	struct wait wait = {};

	if (pacer->in_burst)
		return 1;
	if (!pacer->due_ns)
		pacer->due_ns = bpf_ktime_get_ns() + first_after_ns;
	wait.due_ns = pacer->due_ns;
	bpf_loop(WAIT_STEPS, is_due, &wait, 0);
	pacer->now_ns = wait.now_ns;
	return wait.now_ns >= wait.due_ns;
}

static __always_inline void count_departure(__u64 now_ns)
{
	__u32 zero = 0, shift = 0, above;
	struct gaps *counts = bpf_map_lookup_elem(&gaps, &zero);
	__u64 gap;

	if (!counts)
		return;
	gap = now_ns - counts->last_ns;
	counts->last_ns = now_ns;
	if (!counts->bursts++) {
		counts->first_ns = now_ns;
		return;
	}
	if (gap > 0xffffffff)
		gap = 0xffffffff;
	above = gap >> 8;
	if (above >= 1 << 16) { above >>= 16; shift += 16; }
	if (above >= 1 << 8) { above >>= 8; shift += 8; }
	if (above >= 1 << 4) { above >>= 4; shift += 4; }
	if (above >= 1 << 2) { above >>= 2; shift += 2; }
	if (above >= 1 << 1) { above >>= 1; shift += 1; }
	shift += above;
	gap = (shift << 7) + (gap >> shift);
	if (gap < GAP_BUCKETS)
		counts->buckets[gap]++;
}

/* Says that the frame that was due leaves: the first of a burst, or another of it. */
static __always_inline void depart(struct pacer *pacer, __u64 burst, __u64 gap_ns, __u64 gap_fraction)
{
	if (pacer->in_burst) {
		pacer->in_burst--;
		return;
	}
	count_departure(pacer->now_ns);
	pacer->due_fraction += gap_fraction;
	pacer->due_ns += gap_ns + (pacer->due_fraction >> 32);
	pacer->due_fraction &= 0xffffffff;
	pacer->in_burst = burst - 1;
}

#endif
