//! What few bios carry beside what all have: which layers have prepared for it, and what layers asked for while it was resolved.
//!
//! Most bios have no notes, and pay one test of a pointer for that.

use std::fmt::Debug;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::bio::Errno;
use crate::layer::{NodeId, Span};

/// Layers that have prepared for something, and for which piece: mostly one.
pub(crate) type Prepared = SmallVec<[(NodeId, Span); 1]>;

/// Somebody who wants to hear when a bio that was resolved has come to its end. See [`Resolver::watch`](crate::Resolver::watch).
pub trait Watch: Send + Sync + Debug {
    /// All parts of the bio are done, so or so; whoever submitted it has not heard of it yet. Called once for each time that the
    /// bio was resolved; takes no time, and does no I/O.
    fn done(&self, result: Result<(), Errno>);
    /// As a failure that [`Watch::done`] hears of, but a layer below can do without what has failed: the bio is resolved again.
    fn cured(&self, errno: Errno) {
        self.done(Err(errno));
    }
}

/// The notes of a bio.
#[derive(Debug, Default)]
pub(crate) struct Notes(Option<Box<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    /// Layers whose `prepare` has succeeded since the bio was submitted, and for what. Of a layer that the bio reaches on several ways
    /// one piece says nothing about the others.
    prepared: Prepared,
    watches: Vec<Arc<dyn Watch>>,
    flush_after: bool,
}

impl Notes {
    fn entries(&mut self) -> &mut Entries {
        self.0.get_or_insert_default()
    }

    pub(crate) fn was_prepared(&self, node: NodeId, span: Span) -> bool {
        self.0.as_ref().is_some_and(|notes| notes.prepared.contains(&(node, span)))
    }

    pub(crate) fn has_prepared(&self, node: NodeId) -> bool {
        self.0.as_ref().is_some_and(|notes| notes.prepared.iter().any(|(layer, _)| *layer == node))
    }

    pub(crate) fn prepared(&mut self, node: NodeId, span: Span) {
        if !self.was_prepared(node, span) {
            self.entries().prepared.push((node, span));
        }
    }

    /// Who has prepared, by itself: to resolve the bio for the sake of a question.
    pub(crate) fn preparations(&self) -> Notes {
        let prepared = self.0.as_ref().map_or_else(Prepared::new, |notes| notes.prepared.clone());
        Notes(Some(Box::new(Entries { prepared, ..Entries::default() })))
    }

    pub(crate) fn watch(&mut self, watch: Arc<dyn Watch>) {
        self.entries().watches.push(watch);
    }

    pub(crate) fn flush_after(&mut self) {
        self.entries().flush_after = true;
    }

    /// What was asked for while the bio was resolved counts no more: it is to be resolved again.
    pub(crate) fn forget_wishes(&mut self) {
        if let Some(notes) = &mut self.0 {
            notes.watches.clear();
            notes.flush_after = false;
        }
    }

    /// The bio, as it was resolved, has come to its end.
    #[inline]
    pub(crate) fn tell(&mut self, result: Result<(), Errno>) {
        if let Some(notes) = &mut self.0 {
            notes.watches.drain(..).for_each(|watch| watch.done(result));
        }
    }

    /// The bio has failed, and is resolved again, since a layer can do without what has failed.
    pub(crate) fn tell_cured(&mut self, errno: Errno) {
        if let Some(notes) = &mut self.0 {
            notes.watches.drain(..).for_each(|watch| watch.cured(errno));
        }
    }

    /// Whether a flush is to follow. The notes are blank then: what was prepared was so for what came before it.
    #[inline]
    pub(crate) fn take_flush(&mut self) -> bool {
        self.0.as_ref().is_some_and(|notes| notes.flush_after) && self.0.take().is_some()
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.0.is_none()
    }

    /// What was prepared is known no more.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}
