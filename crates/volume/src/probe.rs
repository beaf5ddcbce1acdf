//! What a device holds: asked of every one of them, whatever it is made of.
//!
//! In this order: a member of an md array, one of a firmware's, partitions, an LVM2 physical volume, any other signature. A member may show
//! what its array holds (superblocks at the end leave the start to the data), and is a member all the same, as for blkid. So is one whose
//! superblock is not to be believed: what it shows may be old, or written to behind the back of the other copies.

use blockwork_format::lvm2::Label;
use blockwork_format::md::{self, Superblock};
use blockwork_format::partition::{self, PartitionTable};
use blockwork_format::{ErrorKind, FormatError, Source};

use crate::firmware;
use crate::graph::Content;
use crate::lvm::Pv;
use crate::lvm::metadata::Texts;
use crate::signature::{cut_short, signature};
use crate::source::Buffered;

/// What still changes after so many looks is taken as it is at the last.
pub(crate) const LOOKS: usize = 16;

/// What was found, and what people should know about it.
pub(crate) struct Probed {
    pub(crate) content: Content,
    pub(crate) warnings: Vec<String>,
}

/// How to look.
pub(crate) struct How {
    /// The logical block size of a disk that has one, as a hint for partition tables; 0 for images in files, whose tables go by the disk that
    /// they were made for.
    pub(crate) block_bytes: u32,
    /// Whether there may be partitions: not in partitions, as in Linux.
    pub(crate) partitions: bool,
}

/// Looks what the device holds. Texts of volume groups are kept in `texts`, as many devices have the same one.
pub(crate) fn probe(source: &dyn Source, how: &How, texts: &mut Texts) -> Probed {
    let (unbuffered, source) = (source, &Buffered::new(source));
    let mut warnings = Warnings::default();
    let table = match how.partitions.then(|| partition::read(source, how.block_bytes)) {
        None | Some(Ok(None)) => None,
        Some(Ok(Some(table))) => Some(table),
        Some(Err(error)) => {
            warnings.tell(error);
            None
        }
    };
    let content = of_md(&members_superblocks(source, unbuffered), table.as_ref(), &mut warnings)
        .or_else(|| how.partitions.then(|| of_firmware(source, &mut warnings)).flatten())
        .or_else(|| table.map(|table| of_partitions(table, how.block_bytes, &mut warnings)))
        .or_else(|| of_lvm(source, texts, &mut warnings))
        .or_else(|| of_signature(source, &mut warnings))
        .unwrap_or(Content::Nothing);
    Probed { content, warnings: warnings.all() }
}

/// What people should know about a device, as far as it was looked at.
#[derive(Default)]
struct Warnings {
    said: Vec<String>,
    /// What could not be read. Nothing at all can be of many a device, where much is looked for: that is one warning.
    unread: Vec<FormatError>,
}

impl Warnings {
    fn tell(&mut self, error: FormatError) {
        match error.kind {
            ErrorKind::Io(_) if error.remedy.is_none() => self.unread.push(error),
            _ => self.said.push(error.to_string()),
        }
    }

    fn all(self) -> Vec<String> {
        let Warnings { mut said, mut unread } = self;
        while let Some(first) = unread.first() {
            let why = first.found.clone();
            let (same, others): (Vec<_>, Vec<_>) = unread.into_iter().partition(|error| error.found == why);
            let places: Vec<String> = same.iter().map(FormatError::place_and_position).collect();
            said.push(format!("{}: cannot be read: {why}", places.join(", ")));
            unread = others;
        }
        said
    }
}

fn of_signature(source: &dyn Source, warnings: &mut Warnings) -> Option<Content> {
    let found = signature(source)?;
    warnings.said.extend(cut_short(source, &found));
    Some(Content::Signature(found))
}

/// Superblocks as they are. One that is not to be believed may be half of what another process writes just now: it is read
/// until it is the same twice.
fn members_superblocks(source: &dyn Source, unbuffered: &dyn Source) -> md::Found {
    let mut found = md::find(source);
    for _ in 0..LOOKS {
        if !found.damaged {
            break;
        }
        let again = md::find(unbuffered);
        if again == found {
            break;
        }
        found = again;
    }
    found
}

fn of_md(found: &md::Found, table: Option<&PartitionTable>, warnings: &mut Warnings) -> Option<Content> {
    let superblock = found
        .newest()
        .filter(|superblock| !table.is_some_and(|table| is_of_the_last_partition(superblock, table)));
    // What starts like a superblock at the end of a partitioned disk is its last partition's.
    if superblock.is_some() || table.is_none() {
        found.refused.iter().for_each(|error| warnings.tell(error.clone()));
    }
    match superblock {
        Some(superblock) => Some(Content::MdMember(Box::new(superblock.clone()))),
        None => (found.damaged && table.is_none())
            .then(|| Content::DamagedMember(found.newest_contradicted().cloned().map(Box::new))),
    }
}

/// Whether a superblock 0.90 at the end of a disk is also the one of a partition there, and its data fits that: such
/// a superblock does not say where its member begins.
fn is_of_the_last_partition(superblock: &Superblock, table: &PartitionTable) -> bool {
    let Superblock::V0(superblock) = superblock else { return false };
    table.partitions.iter().any(|partition| {
        let place = md::v0::sector(partition.sectors).map(|sector| sector + partition.start_sector);
        let room = superblock.super_offset.saturating_sub(partition.start_sector);
        let used = superblock.level.has_equal_members().then(|| superblock.member_sectors());
        place == Some(superblock.super_offset) && used.is_none_or(|used| used <= room)
    })
}

/// Only whole disks are members, as for blkid.
fn of_firmware(source: &dyn Source, warnings: &mut Warnings) -> Option<Content> {
    let firmware = firmware::find(source)?;
    warnings.said.push(firmware.advice());
    Some(Content::FirmwareMember(firmware))
}

fn of_partitions(table: PartitionTable, block_bytes: u32, warnings: &mut Warnings) -> Content {
    // The partitions are there, but who gets the whole disk does not find them.
    let block = table.logical_block_size;
    if block > block_bytes.max(512) {
        warnings.said.push(format!(
            "its partition table counts in blocks of {block} bytes: it is the image of a disk that has those. Whoever is to have the \
             whole disk finds its partitions if it is opened with ',logical_block_size={block}'"
        ));
    }
    warnings.said.extend(table.warnings.iter().cloned());
    Content::Partitions(table)
}

fn of_lvm(source: &dyn Source, texts: &mut Texts, warnings: &mut Warnings) -> Option<Content> {
    match Label::find(source) {
        Ok(None) => None,
        Ok(Some(found)) => {
            found.damaged.into_iter().for_each(|error| warnings.tell(error));
            Some(Content::Pv(Box::new(Pv::read(source, found.label, texts, &mut warnings.said))))
        }
        Err(error) => {
            warnings.tell(error);
            None
        }
    }
}
