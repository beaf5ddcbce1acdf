//! Thin pools, and volumes and snapshots in them.
//!
//! A pool NAME is a volume over two that nobody sees: NAME_tdata with the blocks, NAME_tmeta with the map. `lvolN_pmspare` is as large as
//! the largest map of the group: `lvconvert --repair` needs the room. What a volume of a pool is made of the map alone knows;
//! the text knows its size, and the number that the pool knows it by.
//!
//! Text and map change together, in LVM's way: the text gets the volume, a message for the pool, and a `transaction_id` that is one
//! higher than the pool's; the pool is told, and counts; the text loses the message. See `messages.rs` for the two last steps.
//!
//! Invariants: (1) a map is new before the text that names it counts: it begins with zeros, so that whoever uses the pool first makes
//! it; (2) a device number is never given out twice, also not to what a message is about.

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{LvIndex, Message, SegmentType};
use blockwork_format::lvm2::{Node, Section};
use blockwork_format::thin::{
    BLOCK_BYTES, DATA_BLOCK_SECTORS_MAX, DATA_BLOCK_SECTORS_MIN, DEVICES_MAX, METADATA_BLOCKS_MAX,
};
use serde::{Deserialize, Serialize};

use super::create::{Shape, Size, columns};
use super::data::{Piece, wiped};
use super::draft::{Draft, check_tags, lv_list, lv_section, shown, there_are};
use super::error::{EditError, bytes_shown};
use super::resize::{Resize, Resized, only_segment};
use super::section::{Birth, Keys, number, strings, volume};

/// Map that LVM makes at least, bytes.
const METADATA_MIN: u64 = 2 << 20;
/// Largest map, bytes.
const METADATA_MAX: u64 = METADATA_BLOCKS_MAX * BLOCK_BYTES as u64;
/// Where nobody says how large blocks are, they are so large that the map needs no more, bytes.
const METADATA_OPTIMAL: u64 = 128 << 20;
/// Bytes of the map for each block, as LVM reckons.
const BYTES_PER_BLOCK: u64 = 64;
/// The first device number that LVM gives out.
const FIRST_DEVICE: u64 = 1;
/// What the name of the group's spare ends in.
pub(super) const SPARE: &str = "_pmspare";

/// What becomes of discards in a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discards {
    /// They free blocks, and go on to the disks.
    #[default]
    Passdown,
    /// They free blocks.
    NoPassdown,
    /// Volumes take none.
    Ignore,
}

impl Discards {
    /// As in the text, and as LVM's option.
    pub fn word(self) -> &'static str {
        match self {
            Discards::Passdown => "passdown",
            Discards::NoPassdown => "nopassdown",
            Discards::Ignore => "ignore",
        }
    }
}

/// A pool to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewThinPool {
    /// Its name.
    pub name: String,
    /// How much data it holds.
    pub size: Size,
    /// Sectors of a block; otherwise 64 KiB, or as much more as keeps the map within 128 MiB, as for LVM.
    pub chunk_sectors: Option<u64>,
    /// Size of the map, bytes; otherwise 64 for each block, and 2 MiB at least.
    pub metadata_bytes: Option<u64>,
    /// Whether new blocks are zeroed.
    pub zero: bool,
    /// What becomes of discards.
    pub discards: Discards,
    /// Whether writes fail at once when it is full, in place of waiting for room.
    pub error_when_full: bool,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// What a pool became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPool {
    /// Extents of data.
    pub extents: u64,
    /// Extents of the map.
    pub metadata_extents: u64,
    /// Sectors of a block.
    pub chunk_sectors: u64,
}

/// A volume of a pool to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewThin {
    /// Its name.
    pub name: String,
    /// The pool.
    pub pool: String,
    /// How large it looks, bytes: rounded up to whole extents.
    pub bytes: u64,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A snapshot in a pool to be: as large as its origin, of which it shares all blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewThinSnapshot {
    /// The thin volume that it is to stay the same as.
    pub origin: String,
    /// Its name; otherwise the next of `lvol0`, `lvol1`, ..., as for LVM.
    pub name: Option<String>,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A pool as its segment has it.
#[derive(Clone, Copy)]
pub(super) struct PoolText {
    pub(super) lv: LvIndex,
    pub(super) metadata: LvIndex,
    pub(super) data: LvIndex,
    pub(super) transaction_id: u64,
}

/// A volume that is entered into a pool.
struct Entry<'a> {
    name: &'a str,
    extents: u64,
    tags: &'a [String],
    /// Of a snapshot.
    origin: Option<&'a str>,
    external_origin: Option<String>,
}

impl Draft {
    /// Adds a pool.
    ///
    /// # Errors
    ///
    /// A name, tag, size or block that cannot be, or not enough room.
    pub fn create_thin_pool(&mut self, new: &NewThinPool) -> Result<NewPool, EditError> {
        self.check_new_name(&new.name)?;
        check_tags(&new.tags)?;
        self.check_limit_of_volumes()?;
        let (extents, metadata, chunk_sectors) = self.pool_sizes(new)?;
        let spare = self.missing_spare(metadata);
        let mut free = self.free();
        let mut place = |count| -> Result<Vec<Piece>, EditError> {
            let rounds = self.place(&mut free, &Shape::Linear, count, false);
            let rounds = rounds.ok_or_else(|| self.no_room(&free, &Shape::Linear, count))?;
            Ok(columns(&rounds).swap_remove(0))
        };
        let (data_runs, metadata_runs) = (place(extents)?, place(metadata)?);
        let spare_runs = if spare > 0 { place(spare)? } else { Vec::new() };
        let (data, map) = (format!("{}_tdata", new.name), format!("{}_tmeta", new.name));
        self.add_hidden(&data, &data_runs)?;
        self.add_hidden(&map, &metadata_runs)?;
        self.add_pool(new, extents, chunk_sectors, [&data, &map])?;
        self.data.extend(wiped(self.group(), &metadata_runs));
        self.add_spare(&spare_runs)?;
        Ok(NewPool { extents, metadata_extents: metadata, chunk_sectors })
    }

    /// Extents of data and of the map, and sectors of a block.
    fn pool_sizes(&self, new: &NewThinPool) -> Result<(u64, u64, u64), EditError> {
        let extent_bytes = self.group().extent_sectors * 512;
        if let Some(chunk) = new.chunk_sectors {
            check_chunk(chunk)?;
        }
        if let Some(bytes) = new.metadata_bytes.filter(|bytes| !(METADATA_MIN..=METADATA_MAX).contains(bytes))
        {
            let expected = format!("{} to {}", bytes_shown(METADATA_MIN), bytes_shown(METADATA_MAX));
            let found = bytes_shown(bytes);
            return Err(EditError::Value { what: "--pool-metadata-size", found, expected });
        }
        let wanted = self.wanted(new.size, &self.free(), &Shape::Linear)?;
        let estimate = |extents: u64| {
            let bytes = extents.saturating_mul(extent_bytes);
            let chunk = new.chunk_sectors.unwrap_or_else(|| chunk_for(bytes));
            let metadata = new.metadata_bytes.unwrap_or_else(|| metadata_for(bytes, chunk));
            (chunk, metadata.div_ceil(extent_bytes))
        };
        let (chunk, metadata) = estimate(wanted);
        let extents = match new.size {
            Size::Bytes(_) | Size::Extents(_) => wanted,
            // What was asked for in hundredths has room for the map and for the spare as well.
            Size::PercentFree(_) | Size::PercentGroup(_) => {
                wanted.saturating_sub(metadata + self.missing_spare(metadata))
            }
        };
        if extents.saturating_mul(self.group().extent_sectors) < chunk {
            let expected = format!("at least one block of {}", bytes_shown(chunk * 512));
            let found = self.extents_shown(extents);
            return Err(EditError::Value { what: "the size", found, expected });
        }
        Ok((extents, metadata, chunk))
    }

    fn add_pool(
        &mut self,
        new: &NewThinPool,
        extents: u64,
        chunk_sectors: u64,
        [data, map]: [&str; 2],
    ) -> Result<(), EditError> {
        let segment = Keys::default()
            .number("start_extent", 0)
            .number("extent_count", extents)
            .text("type", "thin-pool")
            .text("metadata", map)
            .text("pool", data)
            .number("transaction_id", 0)
            .number("chunk_size", chunk_sectors)
            .text("discards", new.discards.word())
            .number("zero_new_blocks", u64::from(new.zero))
            .done();
        let mut section = self.born(&new.tags, segment);
        if new.error_when_full {
            section.set("flags", strings(["ERROR_WHEN_FULL"]));
        }
        self.add_visible(&new.name, section)?;
        Ok(())
    }

    /// Extents by which the group's spare is smaller than a map.
    fn missing_spare(&self, metadata: u64) -> u64 {
        metadata.saturating_sub(self.spare().map_or(0, |spare| self.group().lvs[spare.0].extents()))
    }

    pub(super) fn spare(&self) -> Option<LvIndex> {
        let vg = self.group();
        let visible = vg.visible();
        (0..vg.lvs.len()).map(LvIndex).find(|lv| !visible[lv.0] && vg.lvs[lv.0].name.ends_with(SPARE))
    }

    /// Makes the spare, or makes it larger, by these runs.
    fn add_spare(&mut self, runs: &[Piece]) -> Result<(), EditError> {
        let more: u64 = runs.iter().map(|(_, count)| count).sum();
        match self.spare() {
            _ if more == 0 => Ok(()),
            Some(spare) => {
                let name = self.group().lvs[spare.0].name.clone();
                self.resize_part(&name, Resize::MoreExtents(more)).map(|_| ())
            }
            None => {
                let taken = |name: &String| self.group().lv(name).is_some();
                let name = super::draft::unused(|n| format!("lvol{n}{SPARE}"), taken);
                self.add_hidden(&name, runs)
            }
        }
    }

    /// Adds a volume to a pool.
    ///
    /// # Errors
    ///
    /// No such pool; or a name, tag or size that cannot be.
    pub fn create_thin(&mut self, new: &NewThin) -> Result<u64, EditError> {
        let pool = self.pool(&new.pool)?;
        let extents = self.wanted(Size::Bytes(new.bytes), &self.free(), &Shape::Linear)?;
        let entry = Entry { name: &new.name, extents, tags: &new.tags, origin: None, external_origin: None };
        self.enter(pool, &entry, &[])?;
        Ok(extents)
    }

    /// Adds a snapshot of a volume of a pool; its name.
    ///
    /// # Errors
    ///
    /// No such volume, or it is in no pool; or a name or tag that cannot be.
    pub fn create_thin_snapshot(&mut self, new: &NewThinSnapshot) -> Result<String, EditError> {
        let origin = self.visible(&new.origin)?;
        let vg = self.group();
        let lv = &vg.lvs[origin.0];
        let SegmentType::Thin { pool, external_origin, ref merge, .. } = lv.segments[0].kind else {
            let why = "it is no thin volume: give its snapshot a size, of what it can keep";
            return Err(EditError::volume(&new.origin, why));
        };
        if merge.is_some() {
            let why = "it is to be merged into its origin: `blockwork lv merge` does that";
            return Err(EditError::volume(&new.origin, why));
        }
        self.check_no_thin_merge(origin)?;
        let (pool, extents) = (self.pool_at(pool), lv.extents());
        let external_origin = external_origin.map(|lv| vg.lvs[lv.0].name.clone());
        let name = new.name.clone().unwrap_or_else(|| self.next_name("lvol"));
        let origin = Some(new.origin.as_str());
        let entry = Entry { name: &name, extents, tags: &new.tags, origin, external_origin };
        // As for `lvcreate -s`: it is not activated with its group.
        self.enter(pool, &entry, &["ACTIVATION_SKIP"])?;
        Ok(name)
    }

    /// Whether a volume is a thin pool.
    ///
    /// # Errors
    ///
    /// No such volume.
    pub fn is_thin_pool(&self, name: &str) -> Result<bool, EditError> {
        let lv = self.visible(name)?;
        Ok(matches!(self.group().lvs[lv.0].segments[0].kind, SegmentType::ThinPool { .. }))
    }

    fn enter(&mut self, pool: PoolText, entry: &Entry<'_>, flags: &[&str]) -> Result<(), EditError> {
        self.check_new_name(entry.name)?;
        check_tags(entry.tags)?;
        self.check_limit_of_volumes()?;
        let pool_name = self.group().lvs[pool.lv.0].name.clone();
        let device = self.free_device(pool.lv).ok_or_else(|| {
            EditError::volume(&pool_name, "it has given out all device numbers that there are")
        })?;
        let mut segment = Keys::default()
            .number("start_extent", 0)
            .number("extent_count", entry.extents)
            .text("type", "thin")
            .text("thin_pool", &pool_name)
            .number("transaction_id", pool.transaction_id)
            .number("device_id", device);
        if let Some(external) = &entry.external_origin {
            segment = segment.text("external_origin", external);
        }
        if let Some(origin) = entry.origin {
            segment = segment.text("origin", origin);
        }
        let mut section = self.born(entry.tags, segment.done());
        section.set("flags", strings(flags));
        self.add_visible(entry.name, section)?;
        self.tell_pool(&pool_name, Keys::default().text("create", entry.name).done())
    }

    /// A number that no volume of a pool has, and no message is about.
    fn free_device(&self, pool: LvIndex) -> Option<u64> {
        let vg = self.group();
        let mut taken: Vec<u64> = vg
            .lvs
            .iter()
            .filter_map(|lv| match &lv.segments[0].kind {
                SegmentType::Thin { pool: own, device_id, .. } if *own == pool => Some(*device_id),
                _ => None,
            })
            .collect();
        if let SegmentType::ThinPool { messages, .. } = &vg.lvs[pool.0].segments[0].kind {
            taken.extend(messages.iter().filter_map(|message| match message {
                Message::Delete(device) => Some(*device),
                Message::Create(_) => None,
            }));
        }
        let last = taken.iter().max().map_or(FIRST_DEVICE, |last| last + 1);
        if last < DEVICES_MAX {
            return Some(last);
        }
        taken.sort_unstable();
        (FIRST_DEVICE..DEVICES_MAX).find(|device| taken.binary_search(device).is_err())
    }

    fn born(&mut self, tags: &[String], segment: Section) -> Section {
        let id = (self.author.ids)();
        let birth = Birth { id, time: self.author.time, host: &self.author.host };
        volume(&birth, &["READ", "WRITE", "VISIBLE"], tags, vec![segment])
    }

    /// The pool of that name.
    pub(super) fn pool(&self, name: &str) -> Result<PoolText, EditError> {
        let lv = self.visible(name)?;
        if matches!(self.group().lvs[lv.0].segments[0].kind, SegmentType::ThinPool { .. }) {
            return Ok(self.pool_at(lv));
        }
        let vg = self.group();
        let is_pool = |lv: &&blockwork_format::lvm2::vg::Lv| {
            matches!(lv.segments[0].kind, SegmentType::ThinPool { .. })
        };
        let pools = vg.lvs.iter().filter(is_pool).map(|lv| lv.name.clone());
        Err(EditError::Absent {
            what: "thin pool",
            name: format!("{}/{name}", vg.name),
            there_are: there_are(pools),
        })
    }

    pub(super) fn pool_at(&self, lv: LvIndex) -> PoolText {
        let SegmentType::ThinPool { metadata, data, transaction_id, .. } =
            self.group().lvs[lv.0].segments[0].kind
        else {
            unreachable!("the reader of the text has seen that it is a pool")
        };
        PoolText { lv, metadata, data, transaction_id }
    }

    /// Makes a volume of a pool look larger or smaller.
    pub(super) fn resize_thin(
        &mut self,
        name: &str,
        resize: Resize,
        may_shrink: bool,
    ) -> Result<Resized, EditError> {
        let lv = self.visible(name)?;
        self.check_no_thin_merge(lv)?;
        let (from, to) = self.new_extents(lv, resize, 1)?;
        if to < from {
            self.check_shrink(name, lv, from, to, may_shrink)?;
        }
        self.set_extents(name, to)?;
        Ok(Resized { from, to, capped: None })
    }

    /// Gives a pool more room for data. Its map learns of it when the pool is opened.
    pub(super) fn grow_pool(&mut self, name: &str, resize: Resize) -> Result<Resized, EditError> {
        let pool = self.pool(name)?;
        let data = self.group().lvs[pool.data.0].name.clone();
        let resized = self.resize_part(&data, resize)?;
        self.set_extents(name, resized.to)?;
        Ok(resized)
    }

    /// Gives a pool's map more room, and the group's spare as much.
    ///
    /// # Errors
    ///
    /// No such pool, less room than it has or more than it can use, or not enough in the group.
    pub fn grow_pool_metadata(&mut self, name: &str, resize: Resize) -> Result<Resized, EditError> {
        let pool = self.pool(name)?;
        let map = self.group().lvs[pool.metadata.0].name.clone();
        let resized = self.resize_part(&map, resize)?;
        let bytes = resized.to.saturating_mul(self.group().extent_sectors * 512);
        // What an extent has beyond the limit stays idle.
        if bytes.saturating_sub(self.group().extent_sectors * 512) >= METADATA_MAX {
            let expected = format!("at most {}", bytes_shown(METADATA_MAX));
            let found = bytes_shown(bytes);
            return Err(EditError::Value { what: "--pool-metadata-size", found, expected });
        }
        let missing = self.missing_spare(resized.to);
        if missing > 0 && self.spare().is_some() {
            let spare = self.spare().map(|spare| self.group().lvs[spare.0].name.clone()).unwrap_or_default();
            self.resize_part(&spare, Resize::MoreExtents(missing))?;
        }
        Ok(resized)
    }

    fn resize_part(&mut self, part: &str, resize: Resize) -> Result<Resized, EditError> {
        let lv = self.group().lv(part).expect("a part of a volume");
        if matches!(self.group().lvs[lv.0].segments[0].kind, SegmentType::Raid { .. }) {
            return self.grow_raid(part, lv, resize);
        }
        let (from, to) = self.new_extents(lv, resize, 1)?;
        if to < from {
            let why = "a thin pool, its map and the spare do not become smaller";
            return Err(EditError::volume(part, why));
        }
        self.resize_plain(part, lv, resize)
    }

    /// Sets the size of a volume that is one segment.
    fn set_extents(&mut self, name: &str, extents: u64) -> Result<(), EditError> {
        self.change(|vg, _| {
            only_segment(lv_section(vg, name)).set("extent_count", number(extents));
            Ok(())
        })
    }

    /// A volume into which a snapshot of its pool is to be merged stays as it is until that is done: its own number in the pool is no more that
    /// of its content.
    pub(super) fn check_no_thin_merge(&self, origin: LvIndex) -> Result<(), EditError> {
        let vg = self.group();
        let Some(snapshot) = vg.merging_thin(origin) else { return Ok(()) };
        let (name, snapshot) = (&vg.lvs[origin.0].name, escape(&vg.lvs[snapshot.0].name));
        let why = format!(
            "its snapshot {snapshot} is to be merged into it; finish that first: blockwork lv merge {}/{snapshot}",
            vg.name
        );
        Err(EditError::volume(name, why))
    }

    /// What thin volumes have nothing of their own for stays what it is.
    pub(super) fn check_no_external_origin(&self, lv: LvIndex) -> Result<(), EditError> {
        let vg = self.group();
        if !vg.is_external_origin(lv) {
            return Ok(());
        }
        let upon = vg.lvs.iter().filter(|one| match one.segments[0].kind {
            SegmentType::Thin { external_origin, .. } => external_origin == Some(lv),
            _ => false,
        });
        let upon = shown(upon.map(|one| one.name.clone()));
        let why = format!("it is the external origin of thin volumes, which would change with it: {upon}");
        Err(EditError::volume(&vg.lvs[lv.0].name, why))
    }

    /// Volumes of a pool that were snapshots of one that goes are of nobody now; and their pool is told.
    pub(super) fn leave_pool(&mut self, name: &str, pool: LvIndex, device: u64) -> Result<(), EditError> {
        let vg = self.group();
        let pool_name = vg.lvs[pool.0].name.clone();
        let gone = vg.lv(name);
        let is_of_it = |lv: &&blockwork_format::lvm2::vg::Lv| matches!(lv.segments[0].kind, SegmentType::Thin { origin, .. } if origin.is_some() && origin == gone);
        let orphans: Vec<String> = vg.lvs.iter().filter(is_of_it).map(|lv| lv.name.clone()).collect();
        self.change(|vg, _| {
            for orphan in &orphans {
                only_segment(lv_section(vg, orphan)).remove("origin");
            }
            Ok(())
        })?;
        if gone.is_some_and(|gone| self.is_unsaid(&pool_name, gone)) {
            return self.forget_creation(&pool_name, name);
        }
        self.tell_pool(&pool_name, Keys::default().number("delete", device).done())
    }

    /// Whether a pool has yet to be told that a volume was made.
    fn is_unsaid(&self, pool: &str, lv: LvIndex) -> bool {
        let pool = self.group().lv(pool).expect("the pool of a volume");
        match &self.group().lvs[pool.0].segments[0].kind {
            SegmentType::ThinPool { messages, .. } => messages.contains(&Message::Create(lv)),
            _ => false,
        }
    }

    /// Takes back that a pool is to be told of a new volume, and its transaction, where it was the only one.
    fn forget_creation(&mut self, pool: &str, name: &str) -> Result<(), EditError> {
        let before = self.pool(pool)?.transaction_id.checked_sub(1);
        let before = before.ok_or_else(|| {
            EditError::volume(pool, "its transaction is 0, though its text has a message of a later one")
        })?;
        self.change(|vg, _| {
            let segment = only_segment(lv_section(vg, pool));
            let is_about_it = |node: &Node| {
                let created = node.as_section().and_then(|message| message.get("create"));
                matches!(created, Some(Node::Value(value)) if value.as_str() == Some(name))
            };
            segment.entries.retain(|entry| !is_about_it(&entry.node));
            if !segment.entries.iter().any(|entry| entry.key.starts_with("message")) {
                segment.set("transaction_id", number(before));
            }
            Ok(())
        })
    }

    /// Takes the spare away where there is no pool that could need it.
    pub(super) fn drop_needless_spare(&mut self) -> Result<Option<String>, EditError> {
        let vg = self.group();
        let is_pool = |kind: &SegmentType| {
            matches!(
                kind,
                SegmentType::ThinPool { .. } | SegmentType::CachePool { .. } | SegmentType::Cache { .. }
            )
        };
        let has_pool = vg.lvs.iter().flat_map(|lv| &lv.segments).any(|segment| is_pool(&segment.kind));
        let Some(spare) = self.spare().filter(|_| !has_pool) else { return Ok(None) };
        let name = vg.lvs[spare.0].name.clone();
        self.change(|vg, _| {
            lv_list(vg).remove(&name);
            Ok(())
        })?;
        Ok(Some(name))
    }

    /// Notes what a pool has to be told, and that it will have counted that.
    pub(super) fn tell_pool(&mut self, pool: &str, message: Section) -> Result<(), EditError> {
        let text = self.pool(pool)?;
        let SegmentType::ThinPool { messages, .. } = &self.group().lvs[text.lv.0].segments[0].kind else {
            unreachable!("it is a pool")
        };
        let is_first = messages.is_empty();
        let next = text.transaction_id + 1;
        if i64::try_from(next).is_err() {
            let why = format!("its transaction is {}, and there is none after that", text.transaction_id);
            return Err(EditError::volume(pool, why));
        }
        self.change(|vg, _| {
            let segment = only_segment(lv_section(vg, pool));
            if is_first {
                segment.set("transaction_id", number(next));
            }
            let key = super::draft::unused(|n| format!("message{}", n + 1), |key| segment.get(key).is_some());
            segment.set(&key, Node::Section(message));
            Ok(())
        })
    }
}

fn check_chunk(sectors: u64) -> Result<(), EditError> {
    let (least, most) = (u64::from(DATA_BLOCK_SECTORS_MIN), u64::from(DATA_BLOCK_SECTORS_MAX));
    if (least..=most).contains(&sectors) && sectors.is_multiple_of(least) {
        return Ok(());
    }
    Err(EditError::Value {
        what: "--chunksize",
        found: bytes_shown(sectors.saturating_mul(512)),
        expected: "a multiple of 64 KiB, from 64 KiB to 1 GiB".into(),
    })
}

/// The map that LVM reckons with.
fn metadata_for(data_bytes: u64, chunk_sectors: u64) -> u64 {
    let blocks = data_bytes / (chunk_sectors * 512);
    blocks.saturating_mul(BYTES_PER_BLOCK).clamp(METADATA_MIN, METADATA_MAX)
}

/// The block, sectors, that keeps the map small.
fn chunk_for(data_bytes: u64) -> u64 {
    let mut chunk = u64::from(DATA_BLOCK_SECTORS_MIN);
    while chunk < u64::from(DATA_BLOCK_SECTORS_MAX)
        && data_bytes / (chunk * 512) * BYTES_PER_BLOCK > METADATA_OPTIMAL
    {
        chunk *= 2;
    }
    chunk
}
