//! The graph of devices: disks, partitions, arrays, logical volumes and tables, each with what it stands upon and what it
//! holds. A plain model: reports are made from it.
//!
//! Invariants: (1) a device stands upon devices with lower numbers only, so that the graph has no circles; (2) names are
//! unique; (3) a device that is read-only makes whatever stands upon it read-only; (4) what is in `warnings` is safe to
//! print.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use blockwork_engine::{Layer, LeafSource, NodeId, Sectors};
use blockwork_format::escape;
use blockwork_format::lvm2::vg::LvIndex;
use blockwork_format::md::{Superblock, is_called};
use blockwork_format::partition::{Partition, PartitionTable};

use crate::firmware::Firmware;
use crate::lvm::{Group, Pv};
use crate::md::Array;
use crate::nodes::Nodes;
use crate::signature::Signature;

/// Which device: index into [`Graph::devices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub usize);

/// Which array: index into [`Graph::arrays`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayId(pub usize);

/// Which volume group: index into [`Graph::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub usize);

/// What a device is.
#[derive(Debug)]
pub enum DeviceKind {
    /// A disk that was opened.
    Disk {
        /// As it was given.
        spec: String,
        /// The leaf.
        source: DiskSource,
    },
    /// A partition of the one device that it stands upon.
    Partition(Partition),
    /// An md array.
    Array(ArrayId),
    /// A logical volume; those that nobody sees (legs, stores, pools' parts) are devices as well.
    Lv {
        /// Its group.
        group: GroupId,
        /// Which of its volumes.
        lv: LvIndex,
    },
    /// A device of a table file.
    Table,
}

/// A leaf with its name, as it is of no use in a debugger.
pub struct DiskSource(pub Arc<dyn LeafSource>);

impl std::fmt::Debug for DiskSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiskSource({:?})", self.0.name())
    }
}

/// What a device holds.
#[derive(Debug, Default)]
pub enum Content {
    /// Nobody has looked.
    #[default]
    Unprobed,
    /// Nothing that is known.
    Nothing,
    /// Partitions.
    Partitions(PartitionTable),
    /// A member of an md array.
    MdMember(Box<Superblock>),
    /// A member of an md array whose superblock is damaged, or says what is not known here, or what cannot be of this device. With it,
    /// where it is intact: nothing of it has been checked, but it may know that other members are stale.
    DamagedMember(Option<Box<Superblock>>),
    /// A member of an array of a disk controller's firmware.
    FirmwareMember(Firmware),
    /// An LVM2 physical volume.
    Pv(Box<Pv>),
    /// Something with a signature: a file system, swap, …
    Signature(Signature),
}

/// Devices on top of each other that can be read and written: each is a few calls deeper on a worker's stack.
const STACK_DEPTH_MAX: usize = 100;

/// Ways that lead from a device to disks, at most. A volume of 10,000 pieces on an array of 24 disks has 240,000.
const WAYS_MAX: u64 = 1 << 20;

/// How a device is read and written.
#[derive(Debug)]
pub(crate) enum Stack {
    /// By this.
    Ready(Arc<dyn Layer>),
    /// By what is built when somebody asks: a logical volume.
    Unbuilt,
    /// Not at all: why, and what can be done.
    Refused(String),
}

/// A device.
#[derive(Debug)]
pub struct Device {
    /// What it is called; `serve` takes this name where it is offered.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Size.
    pub sectors: Sectors,
    /// What it directly stands upon. An origin and its snapshots, of which there may be thousands, share a list.
    pub below: Arc<[DeviceId]>,
    /// What it holds.
    pub content: Content,
    /// Whether it is a volume that can be asked for. Not: parts of other volumes, disks that only a table names.
    pub is_offered: bool,
    /// Why it must not be written, whoever asks.
    pub read_only: Option<String>,
    /// What people should know, one sentence each.
    pub warnings: Vec<String>,
    pub(crate) stack: Stack,
    /// How many devices lie below it at most, one on top of the other.
    pub(crate) depth: usize,
}

impl Device {
    /// Why it cannot be served, where it cannot.
    pub fn refusal(&self) -> Option<&str> {
        match &self.stack {
            Stack::Refused(why) => Some(why),
            Stack::Ready(_) | Stack::Unbuilt => None,
        }
    }

    /// What messages call it: a disk as it was given, anything else by its name.
    pub fn title(&self) -> &str {
        match &self.kind {
            DeviceKind::Disk { spec, .. } => spec,
            _ => &self.name,
        }
    }

    /// Its layer, if it has been built.
    pub fn layer(&self) -> Option<&Arc<dyn Layer>> {
        match &self.stack {
            Stack::Ready(layer) => Some(layer),
            Stack::Unbuilt | Stack::Refused(_) => None,
        }
    }
}

/// All devices, and what some of them make up.
#[derive(Debug, Default)]
pub struct Graph {
    /// The devices.
    pub devices: Vec<Device>,
    /// The arrays.
    pub arrays: Vec<Array>,
    /// The volume groups.
    pub groups: Vec<Group>,
    by_name: HashMap<String, DeviceId>,
    /// Of devices that are no more, and that nobody knows.
    places: BTreeSet<DeviceId>,
    /// How many ways lead from a layer to disks, of those that devices are.
    ways: HashMap<NodeId, u64>,
    /// What was found out last about devices that others stand upon: the next one often shares the list.
    last_base: Option<Base>,
    pub(crate) nodes: Nodes,
}

/// What devices mean for whatever stands upon all of them.
#[derive(Debug, Clone)]
struct Base {
    devices: Arc<[DeviceId]>,
    /// The depth of that.
    depth: usize,
    /// Why it must not be written.
    read_only: Option<String>,
}

/// Which devices stand upon which, with each list of devices that several share once.
#[derive(Debug)]
pub struct Above {
    /// Of each device: the lists that it is in.
    lists: Vec<Vec<usize>>,
    /// Of each list: who stands upon it.
    owners: Vec<Vec<DeviceId>>,
}

impl Above {
    /// Those that directly stand upon a device.
    pub fn of(&self, id: DeviceId) -> impl Iterator<Item = DeviceId> {
        self.lists[id.0].iter().flat_map(|list| self.owners[*list].iter().copied())
    }
}

/// A device to be: what [`Graph::add`] does not find out by itself.
pub(crate) struct NewDevice {
    pub(crate) name: String,
    pub(crate) kind: DeviceKind,
    pub(crate) sectors: Sectors,
    pub(crate) below: Arc<[DeviceId]>,
    pub(crate) stack: Stack,
    pub(crate) is_offered: bool,
    pub(crate) read_only: Option<String>,
}

impl Graph {
    /// The device of that name. Arrays go by others as well: see [`is_called`]. `md:` begins the names of their partitions, too (no group's
    /// name has a colon).
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        let slashed = name.strip_prefix("md:").map(|rest| format!("md/{rest}"));
        let by_name = self.by_name.get(slashed.as_deref().unwrap_or(name)).copied();
        let called = |array: &&Array| is_called(name, &array.name, array.truth.uuid());
        by_name.or_else(|| self.arrays.iter().find(called).map(|array| array.device))
    }

    /// One device.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.0]
    }

    /// All devices with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.devices.iter().enumerate().map(|(n, device)| (DeviceId(n), device))
    }

    /// What the physical volumes of a group are called, disks without their options; `[unknown]`, as LVM has it, those that are missing.
    pub fn pv_names(&self, group: &Group) -> Vec<String> {
        let name = |pv: &Result<DeviceId, String>| match pv {
            Ok(device) => escape(match &self.device(*device).kind {
                DeviceKind::Disk { source, .. } => source.0.name(),
                _ => &self.device(*device).name,
            }),
            Err(_) => "[unknown]".to_owned(),
        };
        group.pvs.iter().map(name).collect()
    }

    /// Of each device, those that directly stand upon it.
    pub fn above(&self) -> Above {
        let mut above = Above { lists: vec![Vec::new(); self.devices.len()], owners: Vec::new() };
        let mut known = HashMap::new();
        for (id, device) in self.iter() {
            let nth = *known.entry(device.below.as_ptr()).or_insert(above.owners.len());
            if nth == above.owners.len() {
                above.owners.push(Vec::new());
                device.below.iter().for_each(|below| above.lists[below.0].push(nth));
            }
            above.owners[nth].push(id);
        }
        above
    }

    /// All that `id` stands upon, directly or not.
    pub fn all_below(&self, id: DeviceId) -> HashSet<DeviceId> {
        let (mut found, mut lists) = (HashSet::new(), HashSet::new());
        let mut left = self.device(id).below.to_vec();
        while let Some(next) = left.pop() {
            let below = &self.device(next).below;
            if found.insert(next) && lists.insert(below.as_ptr()) {
                left.extend(below.iter());
            }
        }
        found
    }

    /// The block in which the disks under a device, or it itself, say that they are addressed, bytes; 0 where none does.
    pub(crate) fn block_bytes(&self, id: DeviceId) -> u32 {
        let below = self.all_below(id).into_iter().chain([id]);
        let told = below.filter_map(|id| match &self.device(id).kind {
            DeviceKind::Disk { source, .. } => Some(source.0.block_bytes()),
            _ => None,
        });
        told.max().unwrap_or(0)
    }

    /// What people should know about anything here, each with whom it is about.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut take = |title: &str, warnings: &[String]| {
            let title = blockwork_format::escape(title);
            all.extend(warnings.iter().map(|warning| format!("{title}: {warning}")));
        };
        for device in &self.devices {
            take(device.title(), &device.warnings);
        }
        for array in &self.arrays {
            take(&array.name, &array.warnings);
        }
        for group in &self.groups {
            take(&group.name, &group.warnings);
        }
        all
    }

    /// `name`, or the first of `name#2`, `name#3`, ... that no device has.
    pub(crate) fn unused_name(&self, name: &str) -> String {
        if !self.by_name.contains_key(name) {
            return name.to_owned();
        }
        let numbered = (2..).map(|n| format!("{name}#{n}"));
        numbered.into_iter().find(|name| !self.by_name.contains_key(name)).expect("devices are bounded")
    }

    /// Adds a device under a name that is not in use, which it takes from [`Graph::unused_name`].
    pub(crate) fn add(&mut self, new: NewDevice) -> DeviceId {
        let id = self.next_id(&new.below);
        let Base { depth, read_only, .. } = self.base(&new.kind, &new.below);
        let stack = match new.stack {
            Stack::Ready(_) | Stack::Unbuilt if depth > STACK_DEPTH_MAX => Stack::Refused(format!(
                "more than {STACK_DEPTH_MAX} devices lie below it, one on top of the other: more than any I/O goes through here"
            )),
            Stack::Ready(layer) => self.with_few_ways(layer).map_or_else(Stack::Refused, Stack::Ready),
            stack => stack,
        };
        let read_only = new.read_only.or(read_only);
        let before = self.by_name.insert(new.name.clone(), id);
        assert!(before.is_none(), "two devices are called {:?}", new.name);
        let device = Device {
            name: new.name,
            kind: new.kind,
            sectors: new.sectors,
            below: new.below,
            content: Content::Unprobed,
            is_offered: new.is_offered,
            read_only,
            warnings: Vec::new(),
            stack,
            depth,
        };
        match self.devices.get_mut(id.0) {
            Some(place) => *place = device,
            None => self.devices.push(device),
        }
        id
    }

    /// The number of a device that stands upon these: that of one that is no more, if there is one above them.
    fn next_id(&mut self, below: &[DeviceId]) -> DeviceId {
        let least = below.iter().map(|below| below.0 + 1).max().unwrap_or(0);
        match self.places.range(DeviceId(least)..).next().copied() {
            Some(place) => {
                self.places.remove(&place);
                place
            }
            None => DeviceId(self.devices.len()),
        }
    }

    /// What devices mean for one that is added upon them; they do not change in that.
    fn base(&mut self, kind: &DeviceKind, devices: &Arc<[DeviceId]>) -> Base {
        if let Some(known) = self.last_base.as_ref().filter(|known| Arc::ptr_eq(&known.devices, devices)) {
            return known.clone();
        }
        let are_there = devices.iter().all(|below| below.0 < self.devices.len());
        assert!(are_there, "a device stands upon what is not there");
        let depth = devices.iter().map(|below| self.device(*below).depth + 1).max().unwrap_or(0);
        let base = Base { devices: devices.clone(), depth, read_only: self.inherited(kind, devices) };
        self.last_base = Some(base.clone());
        base
    }

    /// A device's layer, unless more ways lead through it to disks than a flush, which goes all of them, can go.
    ///
    /// # Errors
    ///
    /// There are more.
    pub(crate) fn with_few_ways(&mut self, layer: Arc<dyn Layer>) -> Result<Arc<dyn Layer>, String> {
        let ways = self.ways_down(&*layer);
        if ways > WAYS_MAX {
            return Err(format!(
                "more than {WAYS_MAX} ways lead through the devices below it: more than a flush goes here"
            ));
        }
        self.ways.insert(layer.node(), ways);
        Ok(layer)
    }

    fn ways_down(&self, layer: &dyn Layer) -> u64 {
        let of = |below: &Arc<dyn Layer>| {
            self.ways.get(&below.node()).copied().unwrap_or_else(|| self.ways_down(&**below))
        };
        layer.below().iter().map(of).fold(0, u64::saturating_add).max(1)
    }

    /// A device has no name any more.
    fn free_name(&mut self, id: DeviceId) {
        let name = &self.devices[id.0].name;
        if self.by_name.get(name) == Some(&id) {
            self.by_name.remove(name);
        }
    }

    /// Gives a device another name, or one as much like it as is not in use; the name it has then.
    pub(crate) fn rename(&mut self, id: DeviceId, name: &str) -> String {
        self.free_name(id);
        let name = self.unused_name(name);
        self.by_name.insert(name.clone(), id);
        self.devices[id.0].name.clone_from(&name);
        name
    }

    /// A device's layer is built anew when somebody asks for it, unless there is a reason why there is none.
    pub(crate) fn unbuild(&mut self, id: DeviceId, refusal: Option<String>) {
        let device = &mut self.devices[id.0];
        if device.depth <= STACK_DEPTH_MAX {
            device.stack = refusal.map_or(Stack::Unbuilt, Stack::Refused);
        }
    }

    /// A device is no more: nothing can be had of it, it stands upon nothing, and its name is free, as is its number.
    pub(crate) fn retire(&mut self, id: DeviceId) {
        self.free_name(id);
        for node in self.nodes.give_up(id) {
            self.ways.remove(&node);
        }
        let device = &mut self.devices[id.0];
        device.stack = Stack::Refused("it was removed".into());
        device.is_offered = false;
        device.below = Arc::default();
        device.warnings = Vec::new();
        // What was part of an array or a group may be known there still.
        let is_part = matches!(
            std::mem::replace(&mut device.content, Content::Nothing),
            Content::MdMember(_) | Content::DamagedMember(_) | Content::FirmwareMember(_) | Content::Pv(_)
        );
        if !is_part {
            self.places.insert(id);
        }
    }

    /// Why a device upon these must not be written. A thin volume only reads its external origin, which nobody may write.
    fn inherited(&self, kind: &DeviceKind, below: &[DeviceId]) -> Option<String> {
        let below = below.iter().filter(|below| !self.is_external_origin(kind, **below));
        below.map(|below| self.device(*below)).find_map(|below| {
            let why = below.read_only.as_ref()?;
            // Said once, however deep the reason lies.
            let said = why.contains(" below it is ");
            Some(if said {
                why.clone()
            } else {
                format!("{} below it is read-only: {why}", blockwork_format::escape(below.title()))
            })
        })
    }

    /// Whether a device is an external origin of volumes in the group of a device of this kind.
    pub(crate) fn is_external_origin(&self, above: &DeviceKind, id: DeviceId) -> bool {
        match (above, &self.device(id).kind) {
            (DeviceKind::Lv { group: of, .. }, DeviceKind::Lv { group, lv }) => {
                of == group && self.groups[group.0].text.is_external_origin(*lv)
            }
            _ => false,
        }
    }

    pub(crate) fn warn(&mut self, id: DeviceId, warning: String) {
        self.devices[id.0].warnings.push(warning);
    }
}
