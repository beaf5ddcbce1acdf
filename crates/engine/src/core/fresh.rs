//! What ports have submitted in a turn, until it is resolved.
//!
//! A look-up in a large table (a thin pool's map) waits for memory, 100 ns and more each time. So bios are not resolved one by one
//! as they come, but together: the layers are told of all of them first, and have the processor fetch what they will look at.
//!
//! Reads and writes of a leaf by itself are not among them: there is nothing to look up, and they are in its queue at once.
//!
//! Invariant: they are resolved in the order in which they were submitted, and before anything else of the turn: no message and no
//! command changes what they are resolved by in between.

use super::{Core, Root};

/// Bios that are resolved together: what is fetched for the last one must not drive out what is there for the first.
const TOGETHER: usize = 32;

impl Core {
    /// Resolves what ports have submitted, in that order. What the layers will look at is brought near for many bios at once, so that
    /// they do not wait for memory one after the other.
    pub(crate) fn resolve_fresh(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for together in fresh.chunks(TOGETHER) {
            if together.len() > 1 {
                self.approach(together);
            }
            for &bio in together {
                self.resolve(bio);
            }
        }
        if let Some(&last) = fresh.last() {
            self.learn(last);
        }
        fresh.clear();
        debug_assert!(self.fresh.is_empty(), "nothing submits meanwhile");
        self.fresh = fresh;
    }

    fn approach(&self, bios: &[u32]) {
        for &bio in bios {
            let state = &self.bios.all[bio as usize];
            match &state.root {
                Root::Volume(volume) => self.volumes[volume.0 as usize].root.approach(&state.span),
                Root::Layer(layer) => layer.approach(&state.span),
            }
        }
    }
}
