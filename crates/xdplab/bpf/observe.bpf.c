// SPDX-License-Identifier: GPL-2.0-only
/* Observers: counters fed by the kernel's tracepoints. Each program is loaded and attached alone, so that a tracepoint
 * which this kernel does not have costs one figure and not the run. All count for one interface (`ifindex` in the network
 * namespace whose inode is `netns`), except where the comment says otherwise. */
#include "bpf.h"

const volatile __u32 ifindex = 0;
const volatile __u32 netns = 0;
/* Frames transmitted to this interface (of namespace `xmit_netns`) are counted by devmap_xmit. */
const volatile __u32 xmit_ifindex = 0;
const volatile __u32 xmit_netns = 0;
/* Instead of an interface: verdicts of the program with this id, wherever it is attached, or those of every program. */
const volatile __u32 prog_id = 0;
const volatile __u32 everything = 0;
/* The process that asks: page pools whose first page it takes in `xmit_netns` are its generator's. */
const volatile __u32 tgid = 0;

struct ns_common {
	unsigned int inum;
} CORE;

struct net {
	struct ns_common ns;
} CORE;

typedef struct {
	struct net *net;
} CORE possible_net_t;

struct nsproxy {
	struct net *net_ns;
} CORE;

struct task_struct {
	struct nsproxy *nsproxy;
} CORE;

struct device {
	int unused;
} CORE;

struct net_device {
	char name[16];
	int ifindex;
	possible_net_t nd_net;
	struct device dev;
} CORE;

struct bpf_prog_aux {
	__u32 id;
} CORE;

struct bpf_prog {
	struct bpf_prog_aux *aux;
} CORE;

struct napi_struct {
	struct net_device *dev;
} CORE;

/* The loader matches fields by name: `p` is page_pool_params up to 6.7 and page_pool_params_fast since; `slow` since 6.8. */
struct page_pool_params {
	struct device *dev;
} CORE;

struct page_pool_params_slow {
	struct net_device *netdev;
} CORE;

struct page_pool {
	struct page_pool_params p;
	struct page_pool_params_slow slow;
} CORE;

enum { MAX_ERRNO_COUNTED = 256, ACTIONS = 8, MAX_FLOWS = 1024 };

struct xmit {
	__u64 sent;
	__u64 drops;
	__u64 bulks;
	__u64 errors; /* bulks that the driver answered with an errno */
};

struct napi {
	__u64 polls;
	__u64 work; /* packets */
	__u64 full; /* polls that used their whole budget */
};

struct softirq {
	__u64 entered_ns; /* 0 outside */
	__u64 busy_ns;
	__u64 runs;
};

struct pool {
	__u64 held;
	__u64 released;
	__u64 owner;
};

struct message {
	char text[128];
};

enum { OWNER_GENERATOR = 1, OWNER_INTERFACE = 2 };

#define PERCPU(name, entries, value_type)                                                                              \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                                               \
		__uint(max_entries, entries);                                                                          \
		__type(key, __u32);                                                                                    \
		__type(value, value_type);                                                                             \
	} name SEC(".maps")

PERCPU(exceptions, ACTIONS, __u64);
PERCPU(redirects, 1, __u64);
PERCPU(redirect_errors, MAX_ERRNO_COUNTED, __u64);
PERCPU(xmits, 1, struct xmit);
PERCPU(xmit_errors, MAX_ERRNO_COUNTED, __u64);
PERCPU(napis, 1, struct napi);
PERCPU(softirqs, 1, struct softirq);

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct pool);
} pools SEC(".maps");

static __always_inline int is_device(const struct net_device *dev, __u32 index, __u32 ns)
{
	return (__u32)dev->ifindex == index && dev->nd_net.net->ns.inum == ns;
}

static __always_inline int is_watched(const struct net_device *dev, const struct bpf_prog *prog)
{
	if (everything)
		return 1;
	return prog_id ? prog->aux->id == prog_id : is_device(dev, ifindex, netns);
}

static __always_inline void add(void *map, __u32 key, __u64 n)
{
	__u64 *value = bpf_map_lookup_elem(map, &key);

	if (value)
		*value += n;
}

static __always_inline __u32 errno_key(__s32 err)
{
	__u32 key = err < 0 ? -err : err;

	return key < MAX_ERRNO_COUNTED ? key : 0;
}

/* (dev, prog, act): a verdict that the driver could not carry out, XDP_ABORTED among them */
SEC("tp_btf/xdp_exception") int xdp_exception(__u64 *ctx)
{
	struct net_device *dev = (void *)ctx[0];
	__u32 act = ctx[2];

	if (is_watched(dev, (void *)ctx[1]))
		add(&exceptions, act < ACTIONS ? act : ACTIONS - 1, 1);
	return 0;
}

/* (dev, prog, target, err, …): a redirect whose frame a queue took; runs once a packet */
SEC("tp_btf/xdp_redirect") int xdp_redirect(__u64 *ctx)
{
	if (is_watched((void *)ctx[0], (void *)ctx[1]))
		add(&redirects, 0, 1);
	return 0;
}

/* (dev, prog, target, err, …): a redirect that failed before a queue took the frame */
SEC("tp_btf/xdp_redirect_err") int xdp_redirect_err(__u64 *ctx)
{
	if (is_watched((void *)ctx[0], (void *)ctx[1]))
		add(&redirect_errors, errno_key((__s32)ctx[3]), 1);
	return 0;
}

/* (from_dev, to_dev, sent, drops, err): one bulk given to the driver's ndo_xdp_xmit */
SEC("tp_btf/xdp_devmap_xmit") int xdp_devmap_xmit(__u64 *ctx)
{
	struct net_device *to = (void *)ctx[1];
	__s32 sent = (__s32)ctx[2], drops = (__s32)ctx[3], err = (__s32)ctx[4];
	struct xmit *xmit;
	__u32 zero = 0;

	if (!is_device(to, xmit_ifindex, xmit_netns))
		return 0;
	xmit = bpf_map_lookup_elem(&xmits, &zero);
	if (!xmit)
		return 0;
	xmit->sent += sent > 0 ? sent : 0;
	xmit->drops += drops;
	xmit->bulks++;
	if (err < 0) {
		xmit->errors++;
		add(&xmit_errors, errno_key(err), 1);
	}
	return 0;
}

/* Frames that redirects transmit from one interface to another, for every pair of the machine, or those from the namespace
 * `netns` and its interface `ifindex` where these are not 0; `err` is what the driver answered, 0 where it took frames. */
struct flow {
	__u32 from_netns;
	__u32 from_ifindex;
	__u32 to_netns;
	__u32 to_ifindex;
	__s32 err;
};

struct flow_xmit {
	__u64 sent;
	__u64 drops;
	__u64 bulks;
	char from[16];
	char to[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow);
	__type(value, struct flow_xmit);
} flows SEC(".maps");

/* Bulks of flows that found no room. */
PERCPU(flows_lost, 1, __u64);

static __always_inline struct flow_xmit *new_flow(const struct flow *flow, struct net_device *from,
						   struct net_device *to)
{
	struct flow_xmit xmit = {};

	bpf_probe_read_kernel_str(xmit.from, sizeof(xmit.from), &from->name);
	bpf_probe_read_kernel_str(xmit.to, sizeof(xmit.to), &to->name);
	bpf_map_update_elem(&flows, flow, &xmit, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, flow);
}

/* (from_dev, to_dev, sent, drops, err): the same bulk as above, by pair of interfaces */
SEC("tp_btf/xdp_devmap_xmit") int flow_xmit(__u64 *ctx)
{
	struct net_device *from = (void *)ctx[0], *to = (void *)ctx[1];
	__s32 sent = (__s32)ctx[2], drops = (__s32)ctx[3], err = (__s32)ctx[4];
	__u32 from_netns = from->nd_net.net->ns.inum;
	struct flow flow = {
		.from_netns = from_netns,
		.from_ifindex = from->ifindex,
		.to_netns = to->nd_net.net->ns.inum,
		.to_ifindex = to->ifindex,
		.err = err < 0 ? -err : 0,
	};
	struct flow_xmit *xmit;

	if ((netns && from_netns != netns) || (ifindex && (__u32)from->ifindex != ifindex))
		return 0;
	xmit = bpf_map_lookup_elem(&flows, &flow);
	if (!xmit)
		xmit = new_flow(&flow, from, to);
	if (!xmit) {
		add(&flows_lost, 0, 1);
		return 0;
	}
	xmit->sent += sent > 0 ? sent : 0;
	xmit->drops += drops > 0 ? drops : 0;
	xmit->bulks++;
	return 0;
}

/* (napi, work, budget): the end of each poll */
SEC("tp_btf/napi_poll") int napi_poll(__u64 *ctx)
{
	struct napi_struct *instance = (void *)ctx[0];
	struct net_device *dev = instance->dev;
	__s32 work = (__s32)ctx[1], budget = (__s32)ctx[2];
	struct napi *napi;
	__u32 zero = 0;

	if (!dev || !is_device(dev, ifindex, netns))
		return 0;
	napi = bpf_map_lookup_elem(&napis, &zero);
	if (!napi)
		return 0;
	napi->polls++;
	napi->work += work > 0 ? work : 0;
	napi->full += work >= budget;
	return 0;
}

enum { NET_RX_SOFTIRQ = 3 };

/* (vec): every device of the CPU, since a softirq is the CPU's */
SEC("tp_btf/softirq_entry") int softirq_entry(__u64 *ctx)
{
	struct softirq *softirq;
	__u32 zero = 0;

	if ((__u32)ctx[0] != NET_RX_SOFTIRQ)
		return 0;
	softirq = bpf_map_lookup_elem(&softirqs, &zero);
	if (softirq)
		softirq->entered_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit") int softirq_exit(__u64 *ctx)
{
	struct softirq *softirq;
	__u32 zero = 0;

	if ((__u32)ctx[0] != NET_RX_SOFTIRQ)
		return 0;
	softirq = bpf_map_lookup_elem(&softirqs, &zero);
	if (!softirq || !softirq->entered_ns)
		return 0;
	softirq->busy_ns += bpf_ktime_get_ns() - softirq->entered_ns;
	softirq->entered_ns = 0;
	softirq->runs++;
	return 0;
}

static __always_inline int is_device_at(__u64 dev)
{
	struct net *net = NULL;
	__u32 index = 0, inum = 0;

	bpf_probe_read_kernel(&index, sizeof(index), (void *)(dev + OFFSET_OF(struct net_device, ifindex)));
	bpf_probe_read_kernel(&net, sizeof(net), (void *)(dev + OFFSET_OF(struct net_device, nd_net.net)));
	bpf_probe_read_kernel(&inum, sizeof(inum), (void *)((__u64)net + OFFSET_OF(struct net, ns.inum)));
	return index == ifindex && inum == netns;
}

/* Several runs of one process each have a generator, in a network namespace of its own. */
static __always_inline int is_generator(void)
{
	const struct task_struct *task = bpf_get_current_task_btf();

	return bpf_get_current_pid_tgid() >> 32 == tgid && task->nsproxy->net_ns->ns.inum == xmit_netns;
}

/* A pool is the interface's if it names it (`slow.netdev`), or if its `struct device` lies within the interface's
 * net_device (veth). It is the generator's if it has no device at all and the generator took its first page: such is the
 * pool of a live-frames test run. Everybody else's pools are left alone. */
static __always_inline __u32 owner(const struct page_pool *pool)
{
	__u64 parent = (__u64)pool->p.dev;

	if (!parent)
		return is_generator() ? OWNER_GENERATOR : 0;
	if (FIELD_EXISTS(pool->slow.netdev) && pool->slow.netdev)
		return is_device(pool->slow.netdev, ifindex, netns) ? OWNER_INTERFACE : 0;
	return is_device_at(parent - OFFSET_OF(struct net_device, dev)) ? OWNER_INTERFACE : 0;
}

/* (pool, page or netmem, hold count) */
SEC("tp_btf/page_pool_state_hold") int page_pool_state_hold(__u64 *ctx)
{
	__u64 key = ctx[0];
	struct pool *pool = bpf_map_lookup_elem(&pools, &key);
	struct pool first = {.held = 1};

	if (pool) {
		__sync_fetch_and_add(&pool->held, 1);
		return 0;
	}
	first.owner = owner((void *)ctx[0]);
	if (first.owner)
		bpf_map_update_elem(&pools, &key, &first, BPF_NOEXIST);
	return 0;
}

/* (pool, page or netmem, release count) */
SEC("tp_btf/page_pool_state_release") int page_pool_state_release(__u64 *ctx)
{
	__u64 key = ctx[0];
	struct pool *pool = bpf_map_lookup_elem(&pools, &key);

	if (pool)
		__sync_fetch_and_add(&pool->released, 1);
	return 0;
}

/* (message): why the kernel refused to attach our program; since 6.6 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct message);
} attach_message SEC(".maps");

SEC("tp_btf/bpf_xdp_link_attach_failed") int bpf_xdp_link_attach_failed(__u64 *ctx)
{
	__u32 zero = 0;
	struct message *message = bpf_map_lookup_elem(&attach_message, &zero);

	if (message && bpf_get_current_pid_tgid() >> 32 == tgid)
		bpf_probe_read_kernel_str(message->text, sizeof(message->text), (void *)ctx[0]);
	return 0;
}

/* cpumap: counted for one map by its id, or for all of them where `cpumap_id` is 0. Independent of the interface. */
const volatile __u32 cpumap_id = 0;

/* The program in the map, by its id. */
const volatile __u32 remote_prog_id = 0;

struct xdp_cpumap_stats {
	unsigned int redirect;
	unsigned int pass;
	unsigned int drop;
} CORE;

struct cpumap_enqueue {
	__u64 processed;
	__u64 drops;
	__u64 bulks;
};

struct cpumap_kthread {
	__u64 processed;
	__u64 drops;
	__u64 sched;
	__u64 pass;
	__u64 drop;
	__u64 redirect;
	__u64 batches;
};

/* Key: the CPU that packets go to; the loader sizes it to the possible CPUs. */
PERCPU(cpumap_enqueues, 1, struct cpumap_enqueue);
PERCPU(cpumap_kthreads, 1, struct cpumap_kthread);
/* Packets that found a queue full, by the map's id; and those of maps that found no room here. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} cpumap_drops SEC(".maps");
PERCPU(cpumap_drops_lost, 1, __u64);
PERCPU(remote_errors, MAX_ERRNO_COUNTED, __u64);

static __always_inline void count_drops(__u32 map_id, __u32 drops)
{
	__u64 none = 0, *sum = bpf_map_lookup_elem(&cpumap_drops, &map_id);

	if (!sum) {
		bpf_map_update_elem(&cpumap_drops, &map_id, &none, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&cpumap_drops, &map_id);
	}
	if (sum)
		*sum += drops;
	else
		add(&cpumap_drops_lost, 0, drops);
}

/* (map_id, processed, drops, to_cpu): one bulk given to the queue of a CPU; in generic mode one packet */
SEC("tp_btf/xdp_cpumap_enqueue") int xdp_cpumap_enqueue(__u64 *ctx)
{
	struct cpumap_enqueue *enqueue;
	__u32 to_cpu = (__u32)ctx[3];

	if (cpumap_id && (__u32)ctx[0] != cpumap_id)
		return 0;
	enqueue = bpf_map_lookup_elem(&cpumap_enqueues, &to_cpu);
	if (!enqueue)
		return 0;
	enqueue->processed += (__u32)ctx[1];
	enqueue->drops += (__u32)ctx[2];
	enqueue->bulks++;
	if ((__u32)ctx[2])
		count_drops((__u32)ctx[0], (__u32)ctx[2]);
	return 0;
}

/* (map_id, processed, drops, sched, xdp_stats): one batch taken out of a queue by its kthread, on that thread's CPU. The
 * last argument, and its type with it, came with programs in the map (5.9). */
SEC("tp_btf/xdp_cpumap_kthread") int xdp_cpumap_kthread(__u64 *ctx)
{
	struct cpumap_kthread *kthread;
	__u32 zero = 0;

	if (cpumap_id && (__u32)ctx[0] != cpumap_id)
		return 0;
	kthread = bpf_map_lookup_elem(&cpumap_kthreads, &zero);
	if (!kthread)
		return 0;
	kthread->processed += (__u32)ctx[1];
	kthread->drops += (__u32)ctx[2];
	kthread->sched += (__s32)ctx[3];
	kthread->batches++;
	if (FIELD_EXISTS(((struct xdp_cpumap_stats *)0)->pass)) {
		struct xdp_cpumap_stats *stats = (void *)ctx[4];

		kthread->pass += stats->pass;
		kthread->drop += stats->drop;
		kthread->redirect += stats->redirect;
	}
	return 0;
}

/* (dev, prog, target, err, …): redirects of the program in the map that failed */
SEC("tp_btf/xdp_redirect_err") int remote_redirect_err(__u64 *ctx)
{
	const struct bpf_prog *prog = (void *)ctx[1];

	if (remote_prog_id && prog->aux->id == remote_prog_id)
		add(&remote_errors, errno_key((__s32)ctx[3]), 1);
	return 0;
}

char _license[] SEC("license") = "GPL";
