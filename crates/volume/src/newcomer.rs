//! A device that is brought in while volumes are served, to become a member of an array.
//!
//! Invariants: (1) what is refused is not kept open, unless it was open before; (2) nothing is brought in that a volume
//! which is served stands upon, or that belongs to something else; (3) nothing is written here.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{Layer, LeafId, LeafSource, NodeId};
use blockwork_format::md::{Superblock, Uuid};
use blockwork_format::partition::Partition;
use blockwork_format::{Source, escape};
use blockwork_leaf::{Kind, Opened, Spec};

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
    /// Devices that arrays have: some may have come after those were assembled.
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
    /// The leaf that is new with it, if there is one, for the workers.
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
        let leaves = self.leaf_count();
        let id = match self.open_already(device) {
            Some(id) => id,
            None => self.open_newcomer(device, purpose)?,
        };
        self.check_free(id, purpose)?;
        let layer = self.layer(id).map_err(|what| refused(self.graph.device(id).title(), what))?;
        // What it held when it was opened may have changed since.
        let found = self.look_again(id, &*layer);
        let title = self.graph.device(id).title().to_owned();
        let superblock = belongs(&title, found, purpose)?;
        let leaf = self.newest_leaf().filter(|_| self.leaf_count() > leaves);
        Ok(Newcomer {
            name: escape(&title),
            layer,
            superblock,
            leaf,
            warnings: self.graph.device(id).warnings.clone(),
        })
    }

    /// Whether [`Assembly::bring_in`] has nothing to open for this device.
    pub fn has_open(&self, device: &str) -> bool {
        self.open_already(device).is_some()
    }

    /// The device of that name, or on that disk, where the disk is open.
    fn open_already(&self, device: &str) -> Option<DeviceId> {
        if let Some(id) = self.graph.find(device) {
            return Some(id);
        }
        if let Some(disk) = self.disk_at(device) {
            return Some(disk);
        }
        let (disk, number) = partition_of(device)?;
        let disk = self.disk_at(disk)?;
        self.graph.iter().find_map(|(id, it)| {
            let is_it = matches!(&it.kind, DeviceKind::Partition(own) if own.number == number);
            (is_it && *it.below == [disk]).then_some(id)
        })
    }

    /// The open disk that is the same file, or the same block device, as what `spec` names.
    fn disk_at(&self, spec: &str) -> Option<DeviceId> {
        let wanted = identity(spec)?;
        self.graph.iter().find_map(|(id, device)| match &device.kind {
            DeviceKind::Disk { spec, .. } => (identity(spec)? == wanted).then_some(id),
            _ => None,
        })
    }

    /// Opens a disk, looks at it, and keeps it only if what is wanted of it is there and may be had.
    fn open_newcomer(&mut self, device: &str, purpose: &Purpose<'_>) -> Result<DeviceId, VolumeError> {
        let (spec, number) = match partition_of(device).filter(|_| identity(device).is_none()) {
            Some((disk, _)) if self.disk_at(disk).is_some() => {
                return Err(refused(device, "the disk has no such partition".into()));
            }
            Some((disk, number)) => (disk, Some(number)),
            None => (device, None),
        };
        let opened = blockwork_leaf::open(spec, &self.plan.open_options())?;
        if opened.source.limits().read_only {
            return Err(refused(device, READ_ONLY.into()));
        }
        let Some(number) = number else {
            let found = self.look_at_leaf(&*opened.source, 0, opened.source.sectors().bytes(), true);
            belongs(device, found, purpose)?;
            return self.keep(spec, opened);
        };
        let partition = self.find_partition(&opened, device, number)?;
        let (start, bytes) = (partition.start_sector * 512, partition.sectors * 512);
        belongs(device, self.look_at_leaf(&*opened.source, start, bytes, false), purpose)?;
        let disk = self.keep(spec, opened)?;
        let below = self.layer(disk).map_err(|what| refused(device, what))?;
        self.keep_partition(disk, &below, partition).map_err(|what| refused(device, what))
    }

    fn find_partition(
        &mut self,
        opened: &Opened,
        device: &str,
        number: u32,
    ) -> Result<Partition, VolumeError> {
        let whole = opened.source.sectors();
        let found = self.look_at_leaf(&*opened.source, 0, whole.bytes(), true);
        let Content::Partitions(table) = found.content else {
            return Err(refused(device, "the disk has no partition table that can be read".into()));
        };
        let numbers: Vec<_> = table.partitions.iter().map(|it| it.number.to_string()).collect();
        let found = table.partitions.into_iter().find(|it| it.number == number);
        let found = found.ok_or_else(|| {
            refused(device, format!("no partition has that number; there are: {}", numbers.join(", ")))
        })?;
        let end = found.start_sector.checked_add(found.sectors).filter(|end| *end <= whole.0);
        end.ok_or_else(|| refused(device, format!("it does not lie within the disk's {whole} sectors")))?;
        Ok(found)
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
        if let Some(why) = &device.read_only {
            return refuse(format!("{READ_ONLY} ({why})"));
        }
        let around = self.around(id, purpose.array);
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

    /// The device, all it stands upon, and all that stands upon it but for the array and what that carries.
    fn around(&self, id: DeviceId, array: Uuid) -> Vec<DeviceId> {
        let above = self.graph.above();
        let is_the_array = |id: DeviceId| match self.graph.device(id).kind {
            DeviceKind::Array(other) => self.graph.arrays[other.0].truth.uuid() == array,
            _ => false,
        };
        let mut found = vec![id];
        let mut is_found = HashSet::from([id]);
        let mut next = 0;
        while let Some(at) = found.get(next).copied() {
            found.extend(above.of(at).filter(|up| !is_the_array(*up) && is_found.insert(*up)));
            next += 1;
        }
        // A partition's disk is written with it.
        if matches!(self.graph.device(id).kind, DeviceKind::Partition(_)) {
            found.extend(self.graph.device(id).below.iter());
        }
        found
    }
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

fn refused(device: &str, what: String) -> VolumeError {
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
