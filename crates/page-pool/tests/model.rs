//! Random operations against a model that knows where every frame is.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "plays the kernel")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use page_pool::{Builder, ErrorKind, Frag, Frame, Hold, Ledger, Owner, ReturnPath, Returner, UmemAddr};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc,
    AllocBulk(usize),
    Drop(usize),
    DropElsewhere(usize),
    PutBulk(usize),
    PutBulkElsewhere(usize),
    Hold(usize),
    EndHold(usize),
    EndHoldElsewhere(usize),
    Frag(usize),
    DropFrag(usize),
    DropFragElsewhere(usize),
    Append(usize),
    ToKernel(usize),
    FromKernel(usize),
    FromKernelTwice(usize),
    Return(usize),
    Flush,
    Rebind,
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..1000_usize;
    prop_oneof![
        8 => Just(Op::Alloc),
        4 => (1..200_usize).prop_map(Op::AllocBulk),
        3 => n.clone().prop_map(Op::Drop),
        4 => n.clone().prop_map(Op::DropElsewhere),
        2 => (1..200_usize).prop_map(Op::PutBulk),
        2 => (1..200_usize).prop_map(Op::PutBulkElsewhere),
        2 => n.clone().prop_map(Op::Hold),
        1 => n.clone().prop_map(Op::EndHold),
        1 => n.clone().prop_map(Op::EndHoldElsewhere),
        4 => (1..4097_usize).prop_map(Op::Frag),
        2 => n.clone().prop_map(Op::DropFrag),
        2 => n.clone().prop_map(Op::DropFragElsewhere),
        2 => n.clone().prop_map(Op::Append),
        2 => n.clone().prop_map(Op::ToKernel),
        2 => n.clone().prop_map(Op::FromKernel),
        1 => n.clone().prop_map(Op::FromKernelTwice),
        4 => n.prop_map(Op::Return),
        1 => Just(Op::Flush),
        1 => Just(Op::Rebind),
    ]
}

/// Does one thing at a time on a thread that is not the owner's.
struct Elsewhere {
    jobs: Option<Sender<Job>>,
    done: Receiver<Job>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Drop(Box<dyn Send>),
    PutBulk(Vec<Frame>),
    Return(Returner, Frame),
    Flush(Returner),
    Returned(Returner),
    Done,
}

impl Elsewhere {
    fn new() -> Self {
        let ((jobs, todo), (finished, done)) = (channel(), channel());
        let work = move || {
            for job in todo {
                let answer = match job {
                    Job::Return(mut returner, frame) => {
                        returner.put(frame);
                        Job::Returned(returner)
                    }
                    Job::Flush(mut returner) => {
                        returner.flush();
                        Job::Returned(returner)
                    }
                    Job::PutBulk(mut frames) => {
                        Frame::put_bulk(&mut frames);
                        Job::Done
                    }
                    Job::Drop(handle) => {
                        drop(handle);
                        Job::Done
                    }
                    Job::Returned(_) | Job::Done => unreachable!("an answer, not a job"),
                };
                finished.send(answer).unwrap();
            }
        };
        Self { jobs: Some(jobs), done, thread: Some(thread::spawn(work)) }
    }

    fn run(&self, job: Job) -> Job {
        self.jobs.as_ref().unwrap().send(job).unwrap();
        self.done.recv().unwrap()
    }

    fn lend(&self, job: Job) -> Returner {
        let Job::Returned(returner) = self.run(job) else { panic!("the returner comes back") };
        returner
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The model: for each outstanding frame, how many references the user has, or that the kernel has it.
/// What is not listed is in the pool.
#[derive(Default)]
struct Model {
    references: BTreeMap<u32, u32>,
    kernel: BTreeMap<u32, UmemAddr>,
}

impl Model {
    fn take(&mut self, index: u32) {
        assert!(self.is_free(index), "frame {index} was handed out twice");
        self.references.insert(index, 1);
    }

    fn is_free(&self, index: u32) -> bool {
        !self.references.contains_key(&index) && !self.kernel.contains_key(&index)
    }

    /// Ends one reference; was it the last?
    fn end(&mut self, index: u32) -> bool {
        let left = self.references.get_mut(&index).unwrap();
        *left -= 1;
        let last = *left == 0;
        if last {
            self.references.remove(&index);
        }
        last
    }
}

struct World {
    owner: Owner,
    frames_total: u32,
    frames: Vec<Frame>,
    frags: Vec<Frag>,
    holds: Vec<Hold>,
    returner: Option<Returner>,
    elsewhere: Elsewhere,
    model: Model,
    /// The frame the model saw fragments cut from last: the pool has references to it.
    cutting: Option<u32>,
}

fn pick<T>(from: &mut Vec<T>, n: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(n % from.len()))
}

impl World {
    fn new(builder: Builder, frames: u32, path: ReturnPath) -> Self {
        let owner = builder.build().unwrap().bind();
        let returner = owner.returner(path).ok();
        Self {
            owner,
            frames_total: frames,
            frames: Vec::new(),
            frags: Vec::new(),
            holds: Vec::new(),
            returner,
            elsewhere: Elsewhere::new(),
            model: Model::default(),
            cutting: None,
        }
    }

    fn end_frame(&mut self, frame: &Frame) {
        for frag in frame.frags() {
            self.model.end(frag.index());
        }
        self.model.end(frame.index());
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc => {
                let free = self.owner.ledger();
                match self.owner.alloc() {
                    Some(frame) => {
                        self.model.take(frame.index());
                        self.frames.push(frame.into_shared());
                    }
                    None => assert_eq!(free.cache + free.ring + free.lanes + free.system, 0, "frames were there"),
                }
            }
            Op::AllocBulk(n) => {
                let mut local = Vec::new();
                let got = self.owner.alloc_bulk(&mut local, n);
                assert_eq!(got, local.len());
                for frame in local {
                    self.model.take(frame.index());
                    self.frames.push(frame.into_shared());
                }
            }
            Op::Drop(n) => {
                if let Some(frame) = pick(&mut self.frames, n) {
                    self.end_frame(&frame);
                }
            }
            Op::DropElsewhere(n) => {
                if let Some(frame) = pick(&mut self.frames, n) {
                    self.end_frame(&frame);
                    self.elsewhere.run(Job::Drop(Box::new(frame)));
                }
            }
            Op::PutBulk(n) => {
                let mut some: Vec<_> = (0..n).map_while(|i| pick(&mut self.frames, i)).collect();
                some.iter().for_each(|frame| self.end_frame(frame));
                Frame::put_bulk(&mut some);
            }
            Op::PutBulkElsewhere(n) => {
                let some: Vec<_> = (0..n).map_while(|i| pick(&mut self.frames, i)).collect();
                some.iter().for_each(|frame| self.end_frame(frame));
                self.elsewhere.run(Job::PutBulk(some));
            }
            Op::Hold(n) => {
                if !self.frames.is_empty() {
                    let frame = &self.frames[n % self.frames.len()];
                    *self.model.references.get_mut(&frame.index()).unwrap() += 1;
                    self.holds.push(frame.hold());
                }
            }
            Op::EndHold(n) | Op::EndHoldElsewhere(n) => {
                if let Some(hold) = pick(&mut self.holds, n) {
                    self.model.end(hold.index());
                    if matches!(op, Op::EndHoldElsewhere(_)) {
                        self.elsewhere.run(Job::Drop(Box::new(hold)));
                    }
                }
            }
            Op::Frag(size) => {
                if let Some(frag) = self.owner.frag_alloc(size) {
                    let index = frag.index();
                    if self.cutting != Some(index) || !self.model.references.contains_key(&index) {
                        self.model.take(index);
                    } else {
                        *self.model.references.get_mut(&index).unwrap() += 1;
                    }
                    if frag.len() <= 2048 || frag.offset() > 0 {
                        self.cutting = Some(index);
                    }
                    self.frags.push(frag);
                }
            }
            Op::DropFrag(n) | Op::DropFragElsewhere(n) => {
                if let Some(frag) = pick(&mut self.frags, n) {
                    self.model.end(frag.index());
                    if matches!(op, Op::DropFragElsewhere(_)) {
                        self.elsewhere.run(Job::Drop(Box::new(frag)));
                    }
                }
            }
            Op::Append(n) => {
                let heads = self.frames.len();
                if heads > 0
                    && let Some(frag) = pick(&mut self.frags, n)
                    && let Err(frag) = self.frames[n % heads].push_frag(frag)
                {
                    assert_eq!(self.frames[n % heads].frags().len(), 17);
                    self.frags.push(frag);
                }
            }
            Op::ToKernel(n) => {
                if let Some(frame) = pick(&mut self.frames, n) {
                    let index = frame.index();
                    match frame.into_kernel() {
                        Ok(addr) => {
                            assert!(self.model.end(index), "a held frame went to the kernel");
                            self.model.kernel.insert(index, addr);
                        }
                        Err(frame) => {
                            assert!(frame.has_frags() || self.model.references[&index] > 1);
                            self.frames.push(frame);
                        }
                    }
                }
            }
            Op::FromKernel(n) | Op::FromKernelTwice(n) => {
                let Some((&index, &addr)) = self.model.kernel.iter().nth(n % self.model.kernel.len().max(1)) else {
                    return;
                };
                self.model.kernel.remove(&index);
                // SAFETY: there is no kernel here that could use the frame.
                let frame = unsafe { self.owner.from_kernel(addr) }.unwrap().into_shared();
                assert_eq!(frame.index(), index);
                self.model.take(index);
                self.frames.push(frame);
                if matches!(op, Op::FromKernelTwice(_)) {
                    // SAFETY: as above.
                    let error = unsafe { self.owner.from_kernel(addr) }.map(drop).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NotInKernel);
                }
            }
            Op::Return(n) => {
                if let Some(frame) = pick(&mut self.frames, n) {
                    let before = self.owner.ledger().batched;
                    self.end_frame(&frame);
                    let returner = self.returner.take().unwrap();
                    self.returner = Some(self.elsewhere.lend(Job::Return(returner, frame)));
                    // Seen from the ledger: the frame, and nothing else, may be in the batch now.
                    let after = self.owner.ledger().batched;
                    assert!(after <= before + 1 && after < 16);
                }
            }
            Op::Flush => {
                let returner = self.returner.take().unwrap();
                self.returner = Some(self.elsewhere.lend(Job::Flush(returner)));
                assert_eq!(self.owner.ledger().batched, 0);
            }
            Op::Rebind => {}
        }
    }

    fn check(&self) {
        let l: Ledger = self.owner.ledger();
        assert_eq!(l.system + l.cache + l.ring + l.lanes + l.frag + l.batched + l.kernel + l.user, l.frames, "{l:?}");
        assert_eq!(l.frames, self.frames_total);
        assert_eq!(l.kernel as usize, self.model.kernel.len());
        // The frame being cut is the pool's, whether or not it has fragments out.
        let cut = l.frag == 1 && self.cutting.is_some_and(|index| self.model.references.contains_key(&index));
        assert_eq!(l.user as usize, self.model.references.len() - usize::from(cut), "{l:?}");
        assert_eq!(self.owner.inflight(), (l.frames - l.system) as i32);
        let stats = self.owner.stats();
        assert!(stats.recycle.cache_full <= stats.recycle.ring + stats.recycle.ring_full);
    }

    fn rebind(self) -> Self {
        let Self { owner, frames_total, frames, frags, holds, returner, elsewhere, model, cutting } = self;
        let owner = owner.unbind().bind();
        Self { owner, frames_total, frames, frags, holds, returner, elsewhere, model, cutting }
    }

    fn end(self) {
        let Self { owner, frames, frags, holds, returner, elsewhere, model, .. } = self;
        drop(returner);
        let closed = owner.close();
        let mut expected: Vec<_> = model.references.keys().chain(model.kernel.keys()).copied().collect();
        expected.sort_unstable();
        let named: Vec<_> = closed.outstanding.iter().map(|left| left.index).collect();
        assert_eq!(named, expected);
        assert!(closed.doubled.is_empty());
        for frame in frames {
            assert!(!closed.is_freed());
            elsewhere.run(Job::Drop(Box::new(frame)));
        }
        drop((frags, holds));
        assert_eq!(closed.is_freed(), model.kernel.is_empty());
    }
}

fn play(builder: Builder, frames: u32, path: ReturnPath, ops: Vec<Op>) {
    let mut world = World::new(builder, frames, path);
    for op in ops {
        let rebind = matches!(op, Op::Rebind);
        world.apply(op);
        if rebind {
            world = world.rebind();
        }
        world.check();
    }
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_umem_pool_keeps_every_frame_at_one_place(
        frames in 1..200_u32, lane: bool, ops in prop::collection::vec(op(), 1..200),
    ) {
        let path = if lane { ReturnPath::Lane } else { ReturnPath::Ring };
        play(Builder::umem(frames), frames, path, ops);
    }

    #[test]
    fn a_heap_pool_keeps_every_frame_at_one_place(
        frames in 1..600_u32, lane: bool, ops in prop::collection::vec(op(), 1..200),
    ) {
        let path = if lane { ReturnPath::Lane } else { ReturnPath::Ring };
        play(Builder::heap(frames).ring_size(32), frames, path, ops);
    }
}
