//! The form of an array: what changes when it grows, all of it at once.
//!
//! Forms are only ever appended: who resolves a bio may hold on to one for as long as that takes. A new one becomes current
//! while no write is under way (behind a fence around everything).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwork_engine::Shape;

use super::geometry::Geometry;
use super::intent::Intent;

/// How often an array can grow while it is served.
const GROWTHS_MAX: usize = 31;

/// What an array is like.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) shape: Shape,
    pub(super) geometry: Geometry,
    pub(super) intent: Option<Intent>,
}

/// The forms of an array, the last of which is current.
#[derive(Debug)]
pub(super) struct Forms {
    first: Form,
    /// How many were added.
    count: AtomicUsize,
    added: [OnceLock<Box<Form>>; GROWTHS_MAX],
}

impl Forms {
    pub(super) fn new(first: Form) -> Forms {
        Forms { first, count: AtomicUsize::new(0), added: std::array::from_fn(|_| OnceLock::new()) }
    }

    #[inline]
    pub(super) fn current(&self) -> &Form {
        match self.count.load(Ordering::Acquire) {
            0 => &self.first,
            count => self.grown(count),
        }
    }

    fn grown(&self, count: usize) -> &Form {
        self.added[count - 1].get().expect("a form is there before it is counted")
    }

    /// Whether there is room for another one.
    pub(super) fn has_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < GROWTHS_MAX
    }

    /// Makes another form the current one. Under the array's turn, where there is room.
    pub(super) fn push(&self, form: Form) {
        let count = self.count.load(Ordering::Acquire);
        self.added[count].get_or_init(|| Box::new(form));
        self.count.store(count + 1, Ordering::Release);
    }
}
