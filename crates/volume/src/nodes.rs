//! Numbers of layers in counters and traces.

use std::collections::HashMap;

use blockwork_engine::{NodeId, NodeInfo, NodeKind};

use crate::error::VolumeError;

/// Volumes and layers that one process can number.
const NODES_MAX: usize = 65_000;
/// Minor numbers have 20 bits in a trace.
const MINOR_MAX: u32 = (1 << 20) - 1;

/// Major numbers that traces show: those of Linux' extended block devices, of its device mapper and of md.
pub(crate) const MAJOR_DISK: u32 = 259;
pub(crate) const MAJOR_DM: u32 = 253;
pub(crate) const MAJOR_MD: u32 = 9;

/// All nodes so far.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    infos: Vec<NodeInfo>,
    /// Of the layers of logical volumes, by name and kind.
    of_volumes: HashMap<(String, &'static str), NodeId>,
    minors: HashMap<u32, u32>,
}

impl Nodes {
    /// A new node.
    pub(crate) fn add(&mut self, name: &str, kind: NodeKind, major: u32) -> Result<NodeId, VolumeError> {
        if self.infos.len() >= NODES_MAX {
            return Err(VolumeError::TooMany { what: "layers", limit: NODES_MAX });
        }
        let minor = self.minors.entry(major).or_default();
        let device = (major, (*minor).min(MINOR_MAX));
        *minor += 1;
        self.infos.push(NodeInfo { name: name.to_owned(), kind, device });
        Ok(NodeId(u16::try_from(self.infos.len() - 1).expect("NODES_MAX is below 65536")))
    }

    /// The node of a logical volume's layer: the one that the layer of that name and kind had before, where it is built anew because
    /// the volume has changed.
    pub(crate) fn of_volume(
        &mut self,
        name: &str,
        kind: NodeKind,
        major: u32,
    ) -> Result<NodeId, VolumeError> {
        let key = (name.to_owned(), kind.name());
        if let Some(node) = self.of_volumes.get(&key) {
            return Ok(*node);
        }
        let node = self.add(name, kind, major)?;
        self.of_volumes.insert(key, node);
        Ok(node)
    }

    /// Their descriptions, by number.
    pub(crate) fn infos(&self) -> &[NodeInfo] {
        &self.infos
    }
}
