//! Disks that are closed while volumes are served, since nothing uses them any more, and opened again should somebody want them back.
//!
//! A disk that was closed keeps its place among the leaves, its nodes and its name: it is the same one to counters and traces when it comes
//! back. Meanwhile nothing can be had of it.
//!
//! Invariants: (1) a disk is closed only if no volume that is served, no array, group or table uses it or a part of it; (2) workers have
//! ceased to use its leaf before the assembly forgets what it was opened as; (3) what is opened again is looked at anew, and is not taken for what
//! it was.

use std::sync::Arc;

use blockwork_engine::{Layer, LeafId, LeafLayer, LeafSource, NodeId};
use blockwork_format::escape;
use blockwork_format::partition::Partition;
use blockwork_leaf::{ClosedSource, Kind, Opened, Spec};

use crate::assembly::Assembly;
use crate::graph::{Content, DeviceId, DeviceKind, DiskSource, Stack};
use crate::newcomer::Purpose;
use crate::volumes::{belongs, makes_use};

const CLOSED: &str = "it was taken out of its array, and closed: `md add` opens it again";

/// A disk that can be closed.
pub struct Leaving {
    /// Its leaf.
    pub leaf: LeafId,
    /// Its node.
    pub node: NodeId,
    /// What is open.
    pub source: Arc<dyn LeafSource>,
    /// What takes its place.
    pub closed: Arc<dyn LeafSource>,
    disk: DeviceId,
}

impl Assembly {
    /// The disk of a device that an array had, and that messages call so ([`Newcomer::name`](crate::Newcomer::name)); none if it is closed.
    ///
    /// # Errors
    ///
    /// Why it has to stay open: something else uses it, or it is none that can be opened again as it is.
    pub fn leaving(&self, name: &str, purpose: &Purpose<'_>) -> Result<Option<Leaving>, String> {
        let is_it =
            |id: DeviceId| escape(self.graph.device(id).title()) == name && self.leaf_below(id).is_some();
        let found = self.graph.iter().map(|(id, _)| id).find(|id| is_it(*id));
        let Some((leaf, node, source)) = found.and_then(|id| self.leaf_below(id)) else { return Ok(None) };
        let disk = found.map_or(DeviceId(0), |id| self.disk_below(id));
        self.check_unused(disk, purpose)?;
        let closed = Arc::new(ClosedSource::of(&*source));
        Ok(Some(Leaving { leaf, node, source, closed, disk }))
    }

    /// Nothing uses a disk, or a partition of it.
    fn check_unused(&self, disk: DeviceId, purpose: &Purpose<'_>) -> Result<(), String> {
        let title = |id: DeviceId| escape(self.graph.device(id).title());
        let DeviceKind::Disk { spec, .. } = &self.graph.device(disk).kind else {
            return Err("it is no disk".into());
        };
        if !Spec::parse(spec).is_ok_and(|spec| matches!(spec.kind, Kind::File(_))) {
            return Err("it is no file or block device of this machine".into());
        }
        let served: Vec<DeviceId> = purpose.served.iter().filter_map(|name| self.graph.find(name)).collect();
        for part in self.partitions_of_disk(disk).map(|(id, _)| id).chain([disk]) {
            let around = self.around(part, purpose);
            if let Some(volume) = around.iter().find(|id| served.contains(id)) {
                return Err(format!("{} is served", title(*volume)));
            }
            if let Some(user) = around.iter().find(|id| makes_use(self.graph.device(**id))) {
                return Err(format!("{} stands upon it", title(*user)));
            }
            let name = title(part);
            if purpose.attached.iter().any(|attached| attached.name == name) {
                return Err(format!("an array has {name}"));
            }
            // Of a group that nothing stands upon, say.
            let array_of = |id: DeviceId| match &self.graph.device(id).content {
                Content::MdMember(superblock) => Some(superblock.uuid()),
                _ => None,
            };
            if belongs(self.graph.device(part))
                && !array_of(part).is_some_and(|array| purpose.arrays.contains(&array))
            {
                return Err(format!("{name} belongs to something else"));
            }
        }
        Ok(())
    }

    /// A disk is closed: the workers have what takes its place.
    pub fn close(&mut self, leaving: Leaving) {
        let Leaving { leaf, source, closed, disk, .. } = leaving;
        self.leaves[usize::from(leaf.0)].1 = closed.clone();
        let parts: Vec<DeviceId> = self.partitions_of_disk(disk).map(|(id, _)| id).collect();
        for part in parts.into_iter().chain([disk]) {
            self.graph.devices[part.0].stack = Stack::Refused(CLOSED.into());
        }
        if let DeviceKind::Disk { source, .. } = &mut self.graph.devices[disk.0].kind {
            *source = DiskSource(closed);
        }
        self.closed.insert(disk, leaf);
        source.let_go();
    }

    /// A disk that was closed is open again, and has these partitions.
    pub(crate) fn open_again(
        &mut self,
        disk: DeviceId,
        opened: Opened,
        partitions: &[Partition],
    ) -> DeviceId {
        let leaf = self.closed.remove(&disk).expect("it was closed");
        let Opened { source, warnings } = opened;
        let node = self.leaves[usize::from(leaf.0)].0;
        self.leaves[usize::from(leaf.0)].1 = source.clone();
        let layer: Arc<LeafLayer> =
            Arc::new(LeafLayer::new(leaf, node, source.sectors(), source.limits().clone()));
        let read_only = self.opened_read_only(&*source);
        let device = &mut self.graph.devices[disk.0];
        (device.sectors, device.read_only, device.warnings) = (source.sectors(), read_only, warnings);
        device.stack = Stack::Ready(layer.clone());
        if let DeviceKind::Disk { source: own, .. } = &mut device.kind {
            *own = DiskSource(source);
        }
        let layer = layer as Arc<dyn Layer>;
        let known: Vec<_> = self.partitions_of_disk(disk).map(|(id, own)| (id, own.number)).collect();
        for (id, number) in known {
            let now = partitions.iter().find(|partition| partition.number == number);
            let built = now.map(|now| self.partition_layer(disk, &layer, now));
            let device = &mut self.graph.devices[id.0];
            device.stack = match built {
                Some(Ok(layer)) => {
                    device.sectors = layer.sectors();
                    Stack::Ready(layer)
                }
                Some(Err(why)) => Stack::Refused(why),
                None => Stack::Refused("the disk has no such partition any more".into()),
            };
            if let Some(now) = now {
                device.kind = DeviceKind::Partition(now.clone());
            }
        }
        disk
    }

    /// Whether a device's disk was not closed.
    pub(crate) fn is_open(&self, id: DeviceId) -> bool {
        !self.closed.contains_key(&self.disk_below(id))
    }

    /// The leaf of a disk, or of the disk that a partition is on; none, if that is closed or it is something else.
    pub(crate) fn leaf_below(&self, id: DeviceId) -> Option<(LeafId, NodeId, Arc<dyn LeafSource>)> {
        let disk = self.graph.device(self.disk_below(id));
        let DeviceKind::Disk { source: DiskSource(source), .. } = &disk.kind else { return None };
        let node = disk.layer()?.node();
        Some((self.leaf_of(node), node, source.clone()))
    }

    /// The disk that a partition is on; whatever else it is, itself.
    fn disk_below(&self, id: DeviceId) -> DeviceId {
        match (&self.graph.device(id).kind, &self.graph.device(id).below[..]) {
            (DeviceKind::Partition(_), [disk]) => *disk,
            _ => id,
        }
    }

    /// The partitions of a disk.
    pub(crate) fn partitions_of_disk(&self, disk: DeviceId) -> impl Iterator<Item = (DeviceId, &Partition)> {
        self.graph.iter().filter_map(move |(id, device)| match &device.kind {
            DeviceKind::Partition(own) if *device.below == [disk] => Some((id, own)),
            _ => None,
        })
    }
}
