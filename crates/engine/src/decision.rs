//! What is in force on a leaf of what can be done in several ways, for whoever asks: `blockwork status`, `--stats`, the control API.
//!
//! Some of these are found out by measuring, while clients are served ([`ChoiceSnapshot`](crate::ChoiceSnapshot) has the figures); the
//! others by trying whether something works, once, when the leaf is opened: these say what the trial said.

use std::sync::Mutex;

use crate::layer::NodeId;

/// One setting of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its name, as people set it: `io`, `direct`, `linearize`, `fua`, `fixed`.
    pub setting: &'static str,
    /// What is in force. `auto`: class by class, as measured.
    pub value: &'static str,
    /// Somebody has said so; else it was chosen.
    pub asked: bool,
    /// By which words it was asked for, or what it was chosen by.
    pub why: String,
}

/// Whoever knows what is in force on the leaves that there are now.
type Source = Box<dyn Fn() -> Vec<(NodeId, Vec<Decision>)> + Send + Sync>;

/// What all leaves have in force; nothing, until somebody is there who knows.
#[derive(Default)]
pub(crate) struct Decisions(Mutex<Option<Source>>);

impl Decisions {
    pub(crate) fn watch(&self, source: Source) {
        *self.0.lock().expect("no holder of this lock panics") = Some(source);
    }

    pub(crate) fn snapshot(&self) -> Vec<(NodeId, Vec<Decision>)> {
        self.0
            .lock()
            .expect("no holder of this lock panics")
            .as_ref()
            .map_or_else(Vec::new, |source| source())
    }
}
