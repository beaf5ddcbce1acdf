//! Snapshots of the old kind: a volume with what the origin was, the *store*, and a volume that nobody sees and that lies
//! nowhere, which ties the two together.
//!
//! What LVM shows as the snapshot is the store: it has the snapshot's name and tags, and its size is the store's. The tie,
//! `snapshotN`, is as long as the origin, and has the flag VISIBLE in place of the store.
//!
//! Invariants: (1) a store is new before the text that names it counts: a valid header, and zeros in the first area; so nothing
//! that was on the disk is taken for exceptions, whoever serves the snapshot first. (2) No store is larger than what its origin
//! can ever need, as in LVM, be it new or grown.

use std::ops::RangeInclusive;

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{Area, LvIndex, SegmentType};
use blockwork_format::lvm2::{Node, Section};
use blockwork_format::snapshot::{HEADER_BYTES, Header, Layout};
use serde::{Deserialize, Serialize};

use super::create::{NewVolume, Shape, Size};
use super::data::{Content, DataWrite, Piece, WIPE_BYTES, offset, zeros};
use super::draft::{Draft, lv_list, lv_section};
use super::error::{EditError, bytes_shown};
use super::section::{Birth, Keys, strings, volume};

/// Chunk where nobody says otherwise, sectors: as LVM.
pub const CHUNK_DEFAULT: u64 = 8;
/// Chunks that LVM takes, sectors.
const CHUNKS: RangeInclusive<u64> = 8..=1024;
/// What a store has at least: its header, an area, and a chunk of data.
const CHUNKS_LEAST: u64 = 3;

/// How large a store is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreSize {
    /// As any volume.
    Of(Size),
    /// For so many hundredths of the origin's data, and all metadata beside it.
    PercentOrigin(u64),
}

/// A snapshot to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSnapshot {
    /// The volume that it is to stay the same as.
    pub origin: String,
    /// Its name; otherwise the next of `lvol0`, `lvol1`, ..., as for LVM.
    pub name: Option<String>,
    /// How much it can keep.
    pub size: StoreSize,
    /// Sectors that are kept at once.
    pub chunk_sectors: u64,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// What a snapshot became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshotted {
    /// Its name.
    pub name: String,
    /// The size of its store, extents.
    pub extents: u64,
    /// Why it is larger or smaller than was asked for.
    pub rounded: Option<String>,
}

impl Draft {
    /// Adds a snapshot of a volume.
    ///
    /// # Errors
    ///
    /// No such volume, or one that has no snapshots; a name, tag, size or chunk that cannot be; or not enough room.
    pub fn create_snapshot(&mut self, new: &NewSnapshot) -> Result<Snapshotted, EditError> {
        let layout = layout_of(new.chunk_sectors)?;
        let origin = self.visible(&new.origin)?;
        self.check_origin(origin)?;
        let name = new.name.clone().unwrap_or_else(|| self.next_name("lvol"));
        let (size, capped) = self.store_size(new.size, origin, layout)?;
        let store = NewVolume {
            name: name.clone(),
            size,
            shape: Shape::Linear,
            tags: new.tags.clone(),
            wipe: false,
            no_sync: false,
        };
        let created = self.create_volume(&store)?;
        self.tie(&new.origin, &name, new.chunk_sectors)?;
        let writes = self.new_store(&name, layout);
        self.data.extend(writes);
        Ok(Snapshotted { name, extents: created.extents, rounded: capped.or(created.rounded) })
    }

    /// What a store may grow to that is to grow to `to` extents, and why it is less; of other volumes nothing is said.
    pub(super) fn capped_store(&self, lv: LvIndex, from: u64, to: u64) -> (u64, Option<String>) {
        let snapshot = self.group().snapshot_in(lv);
        let layout =
            snapshot.and_then(|it| Some((it.origin, Layout::new(u32::try_from(it.chunk_size).ok()?)?)));
        let Some((origin, layout)) = layout.filter(|_| to > from) else { return (to, None) };
        let most = self.most_extents(origin, layout).max(from);
        (to.min(most), (to > most).then(|| self.why_capped(origin, most)))
    }

    fn check_origin(&self, origin: LvIndex) -> Result<(), EditError> {
        let vg = self.group();
        let lv = &vg.lvs[origin.0];
        self.check_not_split_off(origin)?;
        let refuse = |why: String| Err(EditError::volume(&lv.name, why));
        if let Some(of) = vg.snapshot_in(origin) {
            let of = escape(&vg.lvs[of.origin.0].name);
            return refuse(format!("it is a snapshot itself, and those have none: make another one of {of}"));
        }
        if vg.snapshots().any(|snapshot| snapshot.origin == origin && snapshot.merging) {
            return refuse("a snapshot is being merged into it; `blockwork lv merge` finishes that".into());
        }
        for segment in &lv.segments {
            let kind = escape(&segment.type_name);
            match &segment.kind {
                SegmentType::Linear(_)
                | SegmentType::Striped { .. }
                | SegmentType::Raid { .. }
                | SegmentType::Error
                | SegmentType::Zero
                    if segment.type_flags.is_empty() => {}
                SegmentType::Thin { .. } => {
                    return refuse(
                        "it is a thin volume, whose snapshots lie in its pool and have no size of their own: leave out --size (or --extents)"
                            .into(),
                    );
                }
                SegmentType::ThinPool { .. } | SegmentType::CachePool { .. } => {
                    return refuse(format!("it is a {kind}, of which there are no snapshots"));
                }
                _ => {
                    return refuse(format!(
                        "it is of type {kind}, of which no snapshots are made here: use `lvcreate -s`"
                    ));
                }
            }
        }
        Ok(())
    }

    /// How large a store becomes, and why it is less than was asked for.
    fn store_size(
        &self,
        asked: StoreSize,
        origin: LvIndex,
        layout: Layout,
    ) -> Result<(Size, Option<String>), EditError> {
        let most = self.most_extents(origin, layout);
        let (size, wanted) = match asked {
            StoreSize::Of(size) => (size, self.wanted(size, &self.free(), &Shape::Linear)?),
            StoreSize::PercentOrigin(hundredths) => {
                let data = self.group().lvs[origin.0].extents();
                let part = u128::from(data) * u128::from(hundredths);
                let part = u64::try_from(part.div_ceil(100)).unwrap_or(u64::MAX);
                let extents = most.saturating_sub(data).saturating_add(part);
                (Size::Extents(extents), extents)
            }
        };
        let least = (CHUNKS_LEAST * layout.chunk_sectors()).div_ceil(self.group().extent_sectors);
        if wanted < least {
            let expected = format!(
                "at least {CHUNKS_LEAST} chunks of {}: {}",
                bytes_shown(layout.chunk_bytes()),
                self.extents_shown(least)
            );
            return Err(EditError::Value { what: "the size", found: self.extents_shown(wanted), expected });
        }
        if wanted > most {
            return Ok((Size::Extents(most), Some(self.why_capped(origin, most))));
        }
        Ok((size, None))
    }

    /// Extents of a store that has room for every chunk of its origin, and for the area that ends the list.
    fn most_extents(&self, origin: LvIndex, layout: Layout) -> u64 {
        let vg = self.group();
        let data = vg.lv_sectors(origin).div_ceil(layout.chunk_sectors());
        let areas = data / layout.exceptions_per_area() + 1;
        let chunks = data.saturating_add(areas).saturating_add(1);
        chunks.saturating_mul(layout.chunk_sectors()).div_ceil(vg.extent_sectors)
    }

    fn why_capped(&self, origin: LvIndex, most: u64) -> String {
        let name = escape(&self.group().lvs[origin.0].name);
        format!(
            "a snapshot of {name} never needs more than {}: that is what it gets",
            self.extents_shown(most)
        )
    }

    /// Hides the store, and ties it to its origin.
    fn tie(&mut self, origin: &str, store: &str, chunk_sectors: u64) -> Result<(), EditError> {
        let name = self.next_name("snapshot");
        let id = (self.author.ids)();
        let birth = Birth { id, time: self.author.time, host: &self.author.host };
        let vg = self.group();
        let extents = vg.lv(origin).map_or(0, |lv| vg.lvs[lv.0].extents());
        let segment = Keys::default()
            .number("start_extent", 0)
            .number("extent_count", extents)
            .text("type", "snapshot")
            .number("chunk_size", chunk_sectors)
            .text("origin", origin)
            .text("cow_store", store)
            .done();
        let tie: Section = volume(&birth, &["READ", "WRITE", "VISIBLE"], &[], vec![segment]);
        self.change(|vg, _| {
            lv_section(vg, store).set("status", strings(["READ", "WRITE"]));
            lv_list(vg).set(&name, Node::Section(tie));
            Ok(())
        })
    }

    /// What a new store begins with.
    fn new_store(&self, name: &str, layout: Layout) -> Vec<DataWrite> {
        let vg = self.group();
        let runs = vg.lv(name).map(|lv| self.runs(lv)).unwrap_or_default();
        let header = HEADER_BYTES as u64;
        let end = ((layout.area_chunk(0) + 1) * layout.chunk_bytes()).max(WIPE_BYTES);
        let mut writes = zeros(vg, &runs, header..end);
        if let Some((start, _)) = runs.first() {
            let content = Content::Bytes(Header { valid: true, layout }.encode().to_vec());
            writes.push(DataWrite { pv: vg.pvs[start.0.0].id, offset: offset(vg, *start), content });
        }
        writes
    }

    /// Where a linear volume lies.
    fn runs(&self, lv: LvIndex) -> Vec<Piece> {
        let run = |area: &Area, count: u64| -> Option<Piece> {
            match *area {
                Area::Pv { pv, extent } => Some(((pv, extent), count)),
                Area::Lv { .. } => None,
            }
        };
        let segments = self.group().lvs[lv.0].segments.iter();
        segments
            .flat_map(|segment| {
                let (areas, count) = segment.areas();
                areas.iter().filter_map(move |area| run(area, count))
            })
            .collect()
    }

    /// The name behind the last of a row, as LVM numbers.
    pub(super) fn next_name(&self, start: &str) -> String {
        let number = |name: &str| name.strip_prefix(start)?.parse::<u32>().ok();
        let gone = self.history().into_iter().flat_map(|gone| gone.entries.iter().map(|entry| &entry.key));
        let last =
            self.group().lvs.iter().map(|lv| &lv.name).chain(gone).filter_map(|name| number(name)).max();
        format!("{start}{}", last.map_or(0, |last| u64::from(last) + 1))
    }
}

fn layout_of(chunk_sectors: u64) -> Result<Layout, EditError> {
    let layout = u32::try_from(chunk_sectors).ok().and_then(Layout::new);
    layout.filter(|_| CHUNKS.contains(&chunk_sectors)).ok_or_else(|| EditError::Value {
        what: "--chunksize",
        found: bytes_shown(chunk_sectors.saturating_mul(512)),
        expected: "a power of two from 4 KiB to 512 KiB".into(),
    })
}
