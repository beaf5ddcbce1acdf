//! Numbers of layers in counters and traces.
//!
//! While volumes are served there is room for [`ADDED_NODES_MAX`] more than there were at the beginning. Volumes come and go for as long as a
//! server runs, so those of a device that is no more are given to other layers: when there are no new ones, and the one first that was
//! given up first, so that whoever still looks at the old one has long ceased to.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use blockwork_engine::{ADDED_NODES_MAX, NodeId, NodeInfo, NodeKind};

use crate::error::VolumeError;
use crate::graph::DeviceId;

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
    /// Of the layers of each logical volume, by name and kind.
    of_volumes: HashMap<DeviceId, BTreeMap<(String, &'static str), NodeId>>,
    minors: HashMap<u32, u32>,
    /// How many there were when workers began to serve; none: they have not.
    at_first: Option<usize>,
    /// Given up by devices that are no more, in that order.
    free: VecDeque<NodeId>,
    /// What has become another layer's since somebody last asked.
    renewed: Vec<NodeId>,
    /// What has had another name since somebody last asked.
    renamed: BTreeSet<NodeId>,
}

impl Nodes {
    /// A new node.
    pub(crate) fn add(&mut self, name: &str, kind: NodeKind, major: u32) -> Result<NodeId, VolumeError> {
        if self.unused() == 0 && self.free.is_empty() {
            return Err(VolumeError::TooMany { what: "layers", limit: self.limit() });
        }
        let minor = self.minors.entry(major).or_default();
        let device = (major, (*minor).min(MINOR_MAX));
        *minor += 1;
        let info = NodeInfo { name: name.to_owned(), kind, device };
        if self.unused() > 0 {
            self.infos.push(info);
            return Ok(NodeId(u16::try_from(self.infos.len() - 1).expect("NODES_MAX is below 65536")));
        }
        let node = self.free.pop_front().expect("it was looked at above");
        self.infos[usize::from(node.0)] = info;
        self.renewed.push(node);
        Ok(node)
    }

    /// How many there can be.
    fn limit(&self) -> usize {
        self.at_first.map_or(NODES_MAX, |at_first| (at_first + ADDED_NODES_MAX).min(NODES_MAX))
    }

    /// Numbers that no layer has had.
    fn unused(&self) -> usize {
        self.limit().saturating_sub(self.infos.len())
    }

    /// How many layers can still be numbered.
    pub(crate) fn room(&self) -> usize {
        self.unused() + self.free.len()
    }

    /// Counters and traces have room for those that there are, and [`ADDED_NODES_MAX`] more.
    pub(crate) fn begin_to_serve(&mut self) {
        self.at_first = Some(self.infos.len());
    }

    /// A device is no more, nor are layers that were built for it; the numbers of these. What there was at the beginning keeps its own.
    pub(crate) fn give_up(&mut self, device: DeviceId) -> Vec<NodeId> {
        let own = self.of_volumes.remove(&device).unwrap_or_default();
        let nodes: Vec<NodeId> = own.into_values().collect();
        let at_first = self.at_first.unwrap_or(usize::MAX);
        self.free.extend(nodes.iter().filter(|node| usize::from(node.0) >= at_first));
        nodes
    }

    /// Those that have become other layers' since somebody last asked.
    pub(crate) fn take_renewed(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.renewed)
    }

    /// Those that go by another name since somebody last asked.
    pub(crate) fn take_renamed(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.renamed)
    }

    /// A device has another name, and so have its layers and its partitions', which are called after it. Their numbers and figures stay.
    pub(crate) fn rename(&mut self, device: DeviceId, old: &str, new: &str) {
        let Some(own) = self.of_volumes.remove(&device) else { return };
        let called = |name: &str| name.strip_prefix(old).map(|rest| format!("{new}{rest}"));
        let renamed = own.into_iter().map(|((name, kind), node)| {
            let name = called(&name).unwrap_or(name);
            self.infos[usize::from(node.0)].name.clone_from(&name);
            self.renamed.insert(node);
            ((name, kind), node)
        });
        let renamed = renamed.collect();
        self.of_volumes.insert(device, renamed);
    }

    /// The node of a layer of `device`, or of its partitions: the one that the layer of that name and kind had before, where it is built anew
    /// because the volume has changed.
    pub(crate) fn of_volume(
        &mut self,
        device: DeviceId,
        name: &str,
        kind: NodeKind,
        major: u32,
    ) -> Result<NodeId, VolumeError> {
        let key = (name.to_owned(), kind.name());
        if let Some(node) = self.of_volumes.get(&device).and_then(|own| own.get(&key)) {
            return Ok(*node);
        }
        let node = self.add(name, kind, major)?;
        self.of_volumes.entry(device).or_default().insert(key, node);
        Ok(node)
    }

    /// Their descriptions, by number.
    pub(crate) fn infos(&self) -> &[NodeInfo] {
        &self.infos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(nodes: &mut Nodes, device: usize, kind: NodeKind) -> Option<u16> {
        let name = format!("vg/{device}");
        nodes.of_volume(DeviceId(device), &name, kind, MAJOR_DM).ok().map(|node| node.0)
    }

    #[test]
    fn numbers_of_devices_that_are_no_more_are_given_to_others_when_there_are_no_new_ones() {
        let mut nodes = Nodes::default();
        assert_eq!(add(&mut nodes, 0, NodeKind::Thin), Some(0));
        nodes.begin_to_serve();
        let last = ADDED_NODES_MAX as u16;
        for i in 1..=last {
            assert_eq!(add(&mut nodes, i.into(), NodeKind::Thin), Some(i));
        }
        assert_eq!((nodes.room(), add(&mut nodes, 9999, NodeKind::Thin)), (0, None));
        for device in [7, 5, 0] {
            assert_eq!(nodes.give_up(DeviceId(device)), [NodeId(device as u16)]);
        }
        // What there was at first has its counters to itself.
        assert_eq!((nodes.room(), nodes.take_renewed()), (2, vec![]));
        assert_eq!(add(&mut nodes, 2000, NodeKind::Linear), Some(7));
        assert_eq!(add(&mut nodes, 2000, NodeKind::Linear), Some(7), "it has one already");
        assert_eq!(add(&mut nodes, 2001, NodeKind::Linear), Some(5));
        assert_eq!(add(&mut nodes, 2002, NodeKind::Linear), None);
        assert_eq!(nodes.take_renewed(), [NodeId(7), NodeId(5)]);
        assert_eq!(nodes.infos()[7].name, "vg/2000");
        assert!(nodes.infos()[7].device.1 > last.into(), "{:?}", nodes.infos()[7]);
    }

    #[test]
    fn a_device_gives_up_all_that_was_built_for_it_and_its_name_is_free() {
        let mut nodes = Nodes::default();
        nodes.begin_to_serve();
        let first = add(&mut nodes, 3, NodeKind::Table).unwrap();
        let second = add(&mut nodes, 3, NodeKind::Linear).unwrap();
        assert_eq!(nodes.give_up(DeviceId(3)), [first, second].map(NodeId), "in the order of their kinds");
        assert!(nodes.give_up(DeviceId(3)).is_empty());
        // The next one of that name is another one.
        assert!(![first, second].contains(&add(&mut nodes, 3, NodeKind::Table).unwrap()));
    }
}
