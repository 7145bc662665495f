//! Where frames come from and go to between uses.

use crate::frame::Frame;
use crate::umem::Umem;

/// A store of frames: [`FramePool`], or a pool of another crate behind [`Frame::park`] and [`Umem::unpark`].
pub trait FrameSource {
    /// A frame, or `None` when there is none left.
    fn take(&mut self) -> Option<Frame>;

    /// Takes a frame back.
    fn give(&mut self, frame: Frame);
}

/// A fixed free-list of one umem's frames, last in first out so that frames stay in the CPU's cache.
///
/// It never allocates after it was made, as long as it is given frames of its own umem only.
#[derive(Debug)]
pub struct FramePool {
    // Before the umem, so that the frames are free by the time the umem looks for frames still out.
    frames: Vec<Frame>,
    umem: Umem,
}

impl FramePool {
    /// A pool of all frames of `umem` that are free now.
    #[must_use]
    pub fn new(umem: &Umem) -> Self {
        let mut pool = Self { frames: Vec::with_capacity(umem.layout().frames as usize), umem: umem.clone() };
        pool.collect();
        pool
    }

    /// Takes in the frames that became free since: dropped, or left over from closed sockets. Returns their number.
    /// Looks at every frame of the umem.
    pub fn collect(&mut self) -> usize {
        let before = self.frames.len();
        self.frames.extend(self.umem.take_free());
        self.frames.len() - before
    }

    /// Frames in the pool.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether no frame is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl FrameSource for FramePool {
    fn take(&mut self) -> Option<Frame> {
        self.frames.pop()
    }

    fn give(&mut self, frame: Frame) {
        self.frames.push(frame);
    }
}

impl Extend<Frame> for FramePool {
    fn extend<T: IntoIterator<Item = Frame>>(&mut self, frames: T) {
        self.frames.extend(frames);
    }
}
