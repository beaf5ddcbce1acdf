//! A volume: the top of a stack, as clients see it.

use std::sync::Arc;

use crate::layer::{Layer, NodeId, topmost_first};
use crate::limits::Limits;
use crate::lock::LockSnapshot;
use crate::modify::Modify;
use crate::units::Sectors;

/// A volume's number, the same for all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// The top of a stack. Immutable; shared by all workers.
#[derive(Clone)]
pub struct Volume {
    /// Its full name, such as `disk/a.img/1`.
    pub name: String,
    /// The stack.
    pub root: Arc<dyn Layer>,
    /// Refuses whatever alters it.
    pub read_only: bool,
    /// Whose turn it is to read, modify and write blocks, of all workers.
    pub(crate) modify: Modify,
}

impl Volume {
    /// A volume over `root`.
    pub fn new(name: impl Into<String>, root: Arc<dyn Layer>, read_only: bool) -> Volume {
        Volume { name: name.into(), root, read_only, modify: Modify::default() }
    }
    /// The same volume with another stack, such as one that has grown.
    #[must_use]
    pub fn with_root(&self, root: Arc<dyn Layer>) -> Volume {
        Volume { root, ..self.clone() }
    }
    /// Waits until every read-modify-write that was begun before has ended.
    pub async fn settle(&self) {
        drop(self.modify.take().await);
    }
    /// Size.
    pub fn sectors(&self) -> Sectors {
        self.root.sectors()
    }
    /// The stacked limits.
    pub fn limits(&self) -> &Limits {
        self.root.limits()
    }
    /// What is known of its own lock, and those of all layers of its stack.
    pub fn locks(&self) -> Vec<LockSnapshot> {
        let own = self.modify.snapshot(format!("{}: unaligned writes", self.name));
        let layers = topmost_first([self.root.clone()]);
        layers.iter().flat_map(|layer| layer.locks()).chain([own]).collect()
    }
    /// Its node in counters and traces.
    pub fn node(&self) -> NodeId {
        self.root.node()
    }
}
