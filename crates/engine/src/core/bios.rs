//! The bios under way on a worker.
//!
//! Their places are used again as they are: a bio is put into one field by field, and of one that has ended only its owner and its memory
//! are taken out.
//!
//! Invariant: a place that is free holds no memory, layer or reply, and has no parts to complete.

use std::cell::Cell;
use std::sync::Arc;

use blockwork_memory::{Segment, Segments, copy_between, slice_segments};

use crate::bio::{Errno, Op};
use crate::layer::{Layer, NodeId, Span};
use crate::limits::Limits;
use crate::modify::Hold;
use crate::notes::Notes;
use crate::port::PortId;
use crate::queue::sectors_in_segments;
use crate::task::Reply;
use crate::units::{Nanos, Sectors};
use crate::volume::VolumeId;

/// Who gets a bio back.
pub(crate) enum Owner {
    Port {
        port: PortId,
        cookie: u64,
    },
    Task(Reply),
    /// That one; and a ragged write waits for the bio's end.
    Holding(Box<(Owner, Hold)>),
}

impl Owner {
    /// Of a place that is free.
    pub(super) const NOBODY: Owner = Owner::Port { port: PortId(u32::MAX), cookie: 0 };

    /// Whether it is a port, and no more than that.
    pub(super) fn is_a_port(&self) -> bool {
        matches!(self, Owner::Port { port, .. } if port.0 != u32::MAX)
    }
}

/// The stack that a bio runs on.
#[derive(Clone)]
pub(super) enum Root {
    Volume(VolumeId),
    Layer(Arc<dyn Layer>),
}

/// A bio that is under way.
pub(super) struct BioState {
    pub(super) owner: Owner,
    pub(super) root: Root,
    pub(super) node: NodeId,
    pub(super) op: Op,
    /// What is being resolved and queued now; a flush, in the last stage of a FUA discard.
    pub(super) span: Span,
    data: Segments,
    /// Parts that have not completed.
    pub(super) parts: Cell<u32>,
    pub(super) error: Option<Errno>,
    pub(super) started: Nanos,
    /// In which it was resolved; `None` while it waits for a slow path.
    pub(super) epoch: Option<u64>,
    /// How often it was run again.
    pub(super) cures: u16,
    /// How often in a row a layer that had deferred it found nothing to do for it.
    pub(super) idle_rounds: u16,
    pub(super) notes: Notes,
}

/// All bios under way on a worker.
#[derive(Default)]
pub(crate) struct Bios {
    pub(super) all: Vec<BioState>,
    free: Vec<u32>,
}

impl Bios {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// One more, that begins now. What there is in `data` is its memory from now on.
    #[inline]
    pub(super) fn add(
        &mut self,
        owner: Owner,
        root: Root,
        node: NodeId,
        span: Span,
        data: &mut Segments,
        now: Nanos,
    ) -> u32 {
        let Some(bio) = self.free.pop() else {
            return self.add_place(owner, root, node, span, std::mem::take(data), now);
        };
        let state = &mut self.all[bio as usize];
        debug_assert!(state.data.is_empty() && state.parts.get() == 0);
        state.owner = owner;
        state.root = root;
        (state.node, state.op, state.span) = (node, span.op, span);
        // What is free has none.
        std::mem::swap(&mut state.data, data);
        (state.error, state.started, state.epoch) = (None, now, None);
        (state.cures, state.idle_rounds) = (0, 0);
        bio
    }

    #[cold]
    fn add_place(
        &mut self,
        owner: Owner,
        root: Root,
        node: NodeId,
        span: Span,
        data: Segments,
        started: Nanos,
    ) -> u32 {
        let bio = u32::try_from(self.all.len()).expect("bios in flight are bounded");
        self.all.push(BioState {
            owner,
            root,
            node,
            op: span.op,
            span,
            data,
            parts: Cell::new(0),
            error: None,
            started,
            epoch: None,
            cures: 0,
            idle_rounds: 0,
            notes: Notes::default(),
        });
        bio
    }

    /// Ends one: who gets it back, and its memory.
    #[inline]
    pub(super) fn end(&mut self, bio: u32) -> (Owner, Segments) {
        let state = &mut self.all[bio as usize];
        state.root = Root::Volume(VolumeId(0));
        state.notes.clear();
        let owner = std::mem::replace(&mut state.owner, Owner::NOBODY);
        let data = std::mem::take(&mut state.data);
        self.free.push(bio);
        (owner, data)
    }

    #[inline]
    pub(super) fn get(&self, bio: u32) -> &BioState {
        &self.all[bio as usize]
    }
    /// Whether a bio reads.
    pub(crate) fn is_read(&self, bio: u32) -> bool {
        self.get(bio).op == Op::Read
    }
    /// A part of this bio was cut off and will complete by itself.
    #[inline]
    pub(crate) fn one_more_part(&self, bio: u32) {
        let parts = &self.get(bio).parts;
        parts.set(parts.get() + 1);
    }
    /// The memory of the part at `at`.
    #[inline]
    pub(crate) fn slice(&self, bio: u32, at: Sectors, nr: Sectors, out: &mut Segments) {
        slice_segments(&self.get(bio).data, at.byte_len(), nr.byte_len(), out);
    }
    /// The memory of all of a bio, if it is one piece, of `nr` sectors.
    #[inline]
    pub(crate) fn whole(&self, bio: u32, nr: Sectors) -> Option<&Segment> {
        match &self.get(bio).data[..] {
            [only] if only.len() == nr.byte_len() => Some(only),
            _ => None,
        }
    }
    /// How much of the part at `at` fits a request's segments.
    #[inline]
    pub(crate) fn sectors_in_segments(&self, bio: u32, at: Sectors, nr: Sectors, limits: &Limits) -> Sectors {
        sectors_in_segments(&self.get(bio).data, at, nr, limits)
    }
    /// Copies `from` to the part of a read that begins at `at`.
    pub(crate) fn fill_from(&self, bio: u32, at: Sectors, from: &Segment) {
        let mut to = Segments::new();
        slice_segments(&self.get(bio).data, at.byte_len(), from.len(), &mut to);
        copy_between(std::slice::from_ref(from), &to);
    }
}
