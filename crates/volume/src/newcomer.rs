//! A device that is brought in while volumes are served, to become a member of an array.
//!
//! Invariants: (1) what is refused is not kept open, unless it was open before; (2) nothing is brought in that a volume
//! which is served stands upon, or that belongs to something else; (3) nothing is written here.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{Layer, LeafId, LeafSource, NodeId, Sectors};
use blockwork_format::md::{Superblock, Uuid};
use blockwork_format::partition::Partition;
use blockwork_format::{Source, escape};
use blockwork_leaf::{Kind, Spec};

use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::{Content, DeviceId, DeviceKind};
use crate::held::held;
use crate::lvm::metadata::Texts;
use crate::probe::{How, probe};
use crate::source::LeafReader;
use crate::volumes::makes_use;

/// Nodes that a device may need: its disk, and itself if it is a partition.
pub const NEWCOMER_NODES_MAX: usize = 2;

const READ_ONLY: &str = "it cannot be written to, as a member must be";

/// What a device is brought in for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// The array that is to have it.
    pub array: Uuid,
    /// Volumes that are served.
    pub served: &'a [&'a str],
    /// Arrays whose devices are known: what was found on disks says nothing of them any more.
    pub arrays: &'a [Uuid],
    /// The devices that these have: some may have come and gone after they were assembled.
    pub attached: &'a [Attached],
    /// It may hold something else, which will be lost.
    pub force: bool,
}

/// A device that an array has.
#[derive(Clone, Debug)]
pub struct Attached {
    /// What messages call it: [`Newcomer::name`].
    pub name: String,
    /// Whether it is the array of the [`Purpose`] that has it.
    pub is_here: bool,
}

/// A device that was brought in.
pub struct Newcomer {
    /// What messages call it.
    pub name: String,
    /// How it is read and written.
    pub layer: Arc<dyn Layer>,
    /// Its superblock of the array that it is brought in for, if it has one.
    pub superblock: Option<Box<Superblock>>,
    /// The leaf that was opened for it, if one was, for the workers: a new one, or one that had been closed.
    pub leaf: Option<(LeafId, NodeId, Arc<dyn LeafSource>)>,
    /// What people should know.
    pub warnings: Vec<String>,
}

impl Assembly {
    /// Brings in `device`: a device by its name here, a disk as [`Plan`](crate::Plan) takes it, or `PATH/NUMBER` for a
    /// partition of one. A disk that is open already is used as it is.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is too many, in use, read-only, or holds something else.
    pub fn bring_in(&mut self, device: &str, purpose: &Purpose<'_>) -> Result<Newcomer, VolumeError> {
        let already = self.known(device).filter(|id| self.is_open(*id));
        let id = match already {
            Some(id) => id,
            None => self.open_newcomer(device, purpose)?,
        };
        self.check_free(id, purpose)?;
        let layer = self.layer(id).map_err(|what| refused(self.graph.device(id).title(), what))?;
        // What it held when it was opened may have changed since.
        let found = self.look_again(id, &*layer);
        let title = self.graph.device(id).title().to_owned();
        let superblock = belongs(&title, found, purpose)?;
        let leaf = already.is_none().then(|| self.leaf_below(id)).flatten();
        Ok(Newcomer {
            name: escape(&title),
            layer,
            superblock,
            leaf,
            warnings: self.graph.device(id).warnings.clone(),
        })
    }

    /// Whether [`Assembly::bring_in`] needs no new leaf or node for this device.
    pub fn knows(&self, device: &str) -> bool {
        self.known(device).is_some()
    }

    /// The device of that name, or on that disk, where the disk is open or was.
    fn known(&self, device: &str) -> Option<DeviceId> {
        if let Some(id) = self.graph.find(device) {
            return Some(id);
        }
        if let Some(disk) = self.disk_at(device) {
            return Some(disk);
        }
        let (disk, number) = partition_of(device)?;
        self.partition_on(self.disk_at(disk)?, number)
    }

    /// The disk that is the same file, or the same block device, as what `spec` names.
    fn disk_at(&self, spec: &str) -> Option<DeviceId> {
        let wanted = identity(spec)?;
        self.graph.iter().find_map(|(id, device)| match &device.kind {
            DeviceKind::Disk { spec, .. } => (identity(spec)? == wanted).then_some(id),
            _ => None,
        })
    }

    /// Opens a disk, looks at it, and keeps it only if what is wanted of it is there and may be had.
    fn open_newcomer(&mut self, device: &str, purpose: &Purpose<'_>) -> Result<DeviceId, VolumeError> {
        let ToOpen { spec, number, closed } = self.to_open(device)?;
        if let Some(disk) = closed {
            self.check_free(self.known(device).unwrap_or(disk), purpose)?;
        }
        let opened = blockwork_leaf::open(&spec, &self.plan.open_options())?;
        let whole = opened.source.sectors();
        if opened.source.limits().read_only {
            return Err(refused(device, READ_ONLY.into()));
        }
        let found = self.look_at_leaf(&*opened.source, 0, whole.bytes(), true);
        let table = match &found.content {
            Content::Partitions(table) => Some(table.partitions.clone()),
            _ => None,
        };
        let wanted = match number {
            Some(number) => {
                let partition = partition_in(table.as_deref(), whole, device, number)?;
                let (start, bytes) = (partition.start_sector * 512, partition.sectors * 512);
                belongs(device, self.look_at_leaf(&*opened.source, start, bytes, false), purpose)?;
                Some(partition)
            }
            None => {
                belongs(device, found, purpose)?;
                None
            }
        };
        let disk = match closed {
            Some(disk) => self.open_again(disk, opened, &table.unwrap_or_default()),
            None => self.keep(&spec, opened)?,
        };
        let Some(partition) = wanted else { return Ok(disk) };
        if let Some(known) = self.partition_on(disk, partition.number) {
            return Ok(known);
        }
        let below = self.layer(disk).map_err(|what| refused(device, what))?;
        self.keep_partition(disk, &below, partition).map_err(|what| refused(device, what))
    }

    /// What is to be opened for a device: a disk that is new, or one that was closed.
    fn to_open(&self, device: &str) -> Result<ToOpen, VolumeError> {
        let again = |disk: DeviceId, number| ToOpen {
            spec: self.graph.device(disk).title().to_owned(),
            number,
            closed: Some(disk),
        };
        if let Some(id) = self.known(device) {
            return Ok(match &self.graph.device(id).kind {
                DeviceKind::Partition(own) => again(self.graph.device(id).below[0], Some(own.number)),
                _ => again(id, None),
            });
        }
        let (disk, number) = match partition_of(device).filter(|_| identity(device).is_none()) {
            Some((disk, number)) => (disk, Some(number)),
            None => (device, None),
        };
        match self.disk_at(disk) {
            Some(known) if !self.is_open(known) => Ok(again(known, number)),
            Some(_) => Err(refused(device, "the disk has no such partition".into())),
            None => Ok(ToOpen { spec: disk.to_owned(), number, closed: None }),
        }
    }

    /// The device of a disk's partition.
    pub(crate) fn partition_on(&self, disk: DeviceId, number: u32) -> Option<DeviceId> {
        self.partitions_of_disk(disk).find(|(_, own)| own.number == number).map(|(id, _)| id)
    }

    fn look_at_leaf(&mut self, source: &dyn LeafSource, start: u64, bytes: u64, partitions: bool) -> Found {
        let how = How { block_bytes: source.block_bytes(), partitions };
        look_at(&LeafReader { source, start, bytes }, &how, &mut self.texts)
    }

    fn look_again(&mut self, id: DeviceId, layer: &dyn Layer) -> Found {
        let how = How { block_bytes: self.graph.block_bytes(id), partitions: true };
        let mut texts = std::mem::take(&mut self.texts);
        let found = self.read(layer, |source| look_at(source, &how, &mut texts));
        self.texts = texts;
        found
    }

    /// Nobody else uses it, and it can be written.
    fn check_free(&self, id: DeviceId, purpose: &Purpose<'_>) -> Result<(), VolumeError> {
        let device = self.graph.device(id);
        let refuse = |what: String| Err(refused(device.title(), what));
        if let Some(why) = device.read_only.as_ref().filter(|_| self.is_open(id)) {
            return refuse(format!("{READ_ONLY} ({why})"));
        }
        let around = self.around(id, purpose);
        for name in purpose.served {
            if self.graph.find(name).is_some_and(|served| around.contains(&served)) {
                return refuse(format!(
                    "its bytes are served as the volume {}: name the volumes to serve, without that one, and serve again",
                    escape(name)
                ));
            }
        }
        for other in &around {
            let title = escape(self.graph.device(*other).title());
            match purpose.attached.iter().find(|attached| attached.name == title) {
                Some(_) if *other != id => {
                    return refuse(format!(
                        "{title}, which an array has, shares its bytes; give another disk"
                    ));
                }
                // Of its own devices the array knows best.
                Some(attached) if !attached.is_here => {
                    return refuse("another array has it; give another disk".into());
                }
                _ => {}
            }
        }
        let user = around.iter().map(|it| self.graph.device(*it)).find(|it| makes_use(it));
        match user {
            Some(user) => refuse(format!("{} stands upon it; give another disk", escape(user.title()))),
            None => Ok(()),
        }
    }

    /// The device, all it stands upon, and all that stands upon it but for arrays whose devices are known and what they carry.
    pub(crate) fn around(&self, id: DeviceId, purpose: &Purpose<'_>) -> Vec<DeviceId> {
        let above = self.graph.above();
        let is_known = |id: DeviceId| match self.graph.device(id).kind {
            DeviceKind::Array(array) => purpose.arrays.contains(&self.graph.arrays[array.0].truth.uuid()),
            _ => false,
        };
        let mut found = vec![id];
        let mut is_found = HashSet::from([id]);
        let mut next = 0;
        while let Some(at) = found.get(next).copied() {
            found.extend(above.of(at).filter(|up| !is_known(*up) && is_found.insert(*up)));
            next += 1;
        }
        // A partition's disk is written with it.
        if matches!(self.graph.device(id).kind, DeviceKind::Partition(_)) {
            found.extend(self.graph.device(id).below.iter());
        }
        found
    }
}

/// What is opened for a newcomer.
struct ToOpen {
    spec: String,
    /// Of the partition that is wanted, if one is.
    number: Option<u32>,
    /// The disk, if it was open before.
    closed: Option<DeviceId>,
}

/// What a device holds.
struct Found {
    content: Content,
    /// In words, where it is anything.
    held: Option<String>,
}

fn look_at(source: &dyn Source, how: &How, texts: &mut Texts) -> Found {
    let content = probe(source, how, texts).content;
    let held = held(&content, source, how.block_bytes);
    Found { content, held }
}

/// Its superblock, if it has one of this array; and whether it may be had at all.
fn belongs(title: &str, found: Found, purpose: &Purpose<'_>) -> Result<Option<Box<Superblock>>, VolumeError> {
    match (found.content, found.held) {
        (Content::MdMember(superblock), _) if superblock.uuid() == purpose.array => Ok(Some(superblock)),
        (_, Some(held)) if !purpose.force => Err(refused(
            title,
            format!("it holds {held}, which would be lost; give another disk, or --force if nobody needs it"),
        )),
        _ => Ok(None),
    }
}

/// The partition of that number, of a disk of so many sectors.
fn partition_in(
    table: Option<&[Partition]>,
    whole: Sectors,
    device: &str,
    number: u32,
) -> Result<Partition, VolumeError> {
    let Some(table) = table else {
        return Err(refused(device, "the disk has no partition table that can be read".into()));
    };
    let Some(found) = table.iter().find(|it| it.number == number) else {
        let numbers: Vec<_> = table.iter().map(|it| it.number.to_string()).collect();
        let there_are = numbers.join(", ");
        return Err(refused(device, format!("no partition has that number; there are: {there_are}")));
    };
    let end = found.start_sector.checked_add(found.sectors).filter(|end| *end <= whole.0);
    end.ok_or_else(|| refused(device, format!("it does not lie within the disk's {whole} sectors")))?;
    Ok(found.clone())
}

pub(crate) fn refused(device: &str, what: String) -> VolumeError {
    VolumeError::Refused { name: device.to_owned(), what }
}

/// `PATH/NUMBER`: the disk, and which partition.
pub(crate) fn partition_of(device: &str) -> Option<(&str, u32)> {
    let (disk, number) = device.rsplit_once('/')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().ok()).flatten().map(|number| (disk, number))
}

/// Which file or block device a disk is, whatever the path that leads there; none for what is no file.
pub(crate) fn identity(spec: &str) -> Option<(bool, u64, u64)> {
    let Kind::File(path) = Spec::parse(spec).ok()?.kind else { return None };
    let found = fs::metadata(Path::new(&path)).ok()?;
    let is_block = found.file_type().is_block_device();
    Some(if is_block { (true, found.rdev(), 0) } else { (false, found.dev(), found.ino()) })
}
