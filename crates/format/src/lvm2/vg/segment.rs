//! The segments of an LV: which type has which keys.

use super::read::{Fields, Names, shown};
use super::{AREAS_MAX, EXTENTS_MAX, LvIndex, PvIndex, SECTORS_MAX};
use crate::lvm2::text::Value;
use crate::{ErrorKind, FormatError};

/// A range of an LV's extents, and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First extent of the LV.
    pub start_extent: u64,
    /// Extents; at least 1.
    pub extent_count: u64,
    /// The type as the text has it, without the flags behind it: `striped`, `raid5_ls`, …
    pub type_name: String,
    /// Flags behind the type's name, each after a `+`: who does not know one of them must leave the LV alone.
    pub type_flags: Vec<String>,
    /// What it is made of.
    pub kind: SegmentType,
    /// Tags.
    pub tags: Vec<String>,
    /// Line of the text.
    pub line: u64,
}

/// Where an area begins. How long it is follows from the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// On a PV.
    Pv {
        /// Which.
        pv: PvIndex,
        /// Extent of the PV.
        extent: u64,
    },
    /// In an LV.
    Lv {
        /// Which.
        lv: LvIndex,
        /// Extent of that LV.
        extent: u64,
    },
}

/// Levels of LVM's RAID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaidLevel {
    /// Stripes without metadata.
    Raid0,
    /// Stripes with metadata LVs.
    Raid0Meta,
    /// Mirrors.
    Raid1,
    /// Stripes of mirrors, near layout.
    Raid10,
    /// raid4, raid5 and raid6 with all their layouts; [`Segment::type_name`] says which.
    Parity,
}

/// What a thin pool's metadata has to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// That a thin volume was made.
    Create(LvIndex),
    /// That a device number is free.
    Delete(u64),
}

/// What a segment is made of. Sizes are sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentType {
    /// `striped` with one stripe.
    Linear(Area),
    /// `striped` with more.
    Striped {
        /// Sectors of a chunk.
        stripe_size: u64,
        /// The stripes, at least 2; each has its share of the segment's extents.
        stripes: Vec<Area>,
    },
    /// `raid0` … `raid10`. The legs are whole LVs.
    Raid {
        /// The level.
        level: RaidLevel,
        /// The legs' data, at least 1.
        images: Vec<LvIndex>,
        /// The legs' metadata, as many; empty for `raid0`.
        metas: Vec<LvIndex>,
        /// Sectors of a chunk; 0 for raid1.
        stripe_size: u64,
        /// Sectors of a bit of the bitmap; 0 where there is none.
        region_size: u64,
        /// Copies of the data: of raid10, where the text has it.
        data_copies: Option<u64>,
        /// Extents that each leg has beside its data, for a reshape; 0 where none was begun. The segment's extents count them, of a
        /// raid10 once for each leg.
        reshape_extents: u64,
    },
    /// `mirror`: the old kind, and what pvmove makes.
    Mirror {
        /// Sectors of a region.
        region_size: u64,
        /// The LV with the log; without one the log is in memory.
        log: Option<LvIndex>,
        /// The mirrors, at least 1; each has as many extents as the segment.
        images: Vec<Area>,
        /// Extents that pvmove has copied.
        extents_moved: Option<u64>,
    },
    /// `snapshot`, in an LV that nobody sees: ties a store to its origin.
    Snapshot {
        /// What it is a snapshot of.
        origin: LvIndex,
        /// The LV with the exceptions, which bears the snapshot's name.
        store: LvIndex,
        /// Sectors of a chunk.
        chunk_size: u64,
        /// Whether it is being merged back.
        merging: bool,
    },
    /// `thin-pool`
    ThinPool {
        /// The LV with the metadata.
        metadata: LvIndex,
        /// The LV with the data.
        data: LvIndex,
        /// What the pool's superblock must have, or one less where there are messages.
        transaction_id: u64,
        /// Sectors of a chunk.
        chunk_size: u64,
        /// `passdown`, `nopassdown` or `ignore`; absent: passdown.
        discards: Option<String>,
        /// Whether new chunks are zeroed.
        zero_new_blocks: bool,
        /// What the pool has yet to be told.
        messages: Vec<Message>,
    },
    /// `thin`
    Thin {
        /// Its pool.
        pool: LvIndex,
        /// The pool's transaction in which it was made.
        transaction_id: u64,
        /// Its number in the pool.
        device_id: u64,
        /// Of what it was a snapshot when it was made.
        origin: Option<LvIndex>,
        /// What is read where it has no chunk.
        external_origin: Option<LvIndex>,
        /// Into what it is to be merged.
        merge: Option<LvIndex>,
    },
    /// `cache-pool`
    CachePool {
        /// The LV with the data.
        data: LvIndex,
        /// The LV with the metadata.
        metadata: LvIndex,
        /// Sectors of a chunk, where it is set.
        chunk_size: Option<u64>,
        /// `writethrough`, `writeback` or `passthrough`; absent: writeback.
        mode: Option<String>,
    },
    /// `cache`
    Cache {
        /// The cache pool, or the one LV that is used in its place.
        pool: LvIndex,
        /// The slow LV.
        origin: LvIndex,
        /// As of a cache pool, which has it where there is one.
        mode: Option<String>,
        /// Whether LVM has begun to write back what the cache holds, and has not ended.
        is_cleaning: bool,
        /// Of one LV in place of a pool: what is where in it.
        parts: Option<CacheParts>,
    },
    /// `writecache`
    Writecache {
        /// The fast LV.
        fast: LvIndex,
        /// The slow LV.
        origin: LvIndex,
    },
    /// `error`
    Error,
    /// `zero`
    Zero,
    /// Any other. Its keys are in the tree only.
    Unknown,
}

/// Where metadata and data of a cache are in the one LV that has both: sectors, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheParts {
    /// The metadata.
    pub metadata: (u64, u64),
    /// The data.
    pub data: (u64, u64),
}

impl SegmentType {
    /// LVs that this type uses as they are, from their first extent to their last, and nobody else may use.
    pub fn whole_lvs(&self) -> Vec<LvIndex> {
        match self {
            Self::Raid { images, metas, .. } => [&images[..], metas].concat(),
            Self::Mirror { log, .. } => log.iter().copied().collect(),
            Self::Snapshot { store, .. } => vec![*store],
            Self::ThinPool { metadata, data, .. } | Self::CachePool { data, metadata, .. } => {
                vec![*metadata, *data]
            }
            Self::Cache { pool, origin, .. } => vec![*pool, *origin],
            Self::Writecache { fast, origin } => vec![*fast, *origin],
            Self::Linear(_)
            | Self::Striped { .. }
            | Self::Thin { .. }
            | Self::Error
            | Self::Zero
            | Self::Unknown => Vec::new(),
        }
    }

    /// LVs that have to be there for this one, and that others may use as well.
    pub fn shared_lvs(&self) -> Vec<LvIndex> {
        match self {
            Self::Snapshot { origin, .. } => vec![*origin],
            // A snapshot in a pool does not need its origin.
            Self::Thin { pool, external_origin, .. } => {
                std::iter::once(*pool).chain(*external_origin).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Segment {
    /// A flag of its type that is none of those which that type is known to have.
    pub fn unknown_flag(&self) -> Option<&str> {
        let known = match self.kind {
            // One LV in place of a pool.
            SegmentType::Cache { .. } => Some("CACHE_USES_CACHEVOL"),
            // Which blocks were written to is in a bitmap of its own (`metadata_format = 2`).
            SegmentType::CachePool { .. } => Some("METADATA_FORMAT"),
            _ => None,
        };
        self.type_flags.iter().map(String::as_str).find(|flag| Some(*flag) != known)
    }

    /// Its areas on PVs or in LVs, and how many extents each of them has.
    pub fn areas(&self) -> (&[Area], u64) {
        match &self.kind {
            SegmentType::Linear(area) => (std::slice::from_ref(area), self.extent_count),
            SegmentType::Striped { stripes, .. } => {
                (stripes, self.extent_count / crate::bytes::length(stripes.len()))
            }
            SegmentType::Mirror { images, .. } => (images, self.extent_count),
            _ => (&[], 0),
        }
    }
}

/// The segment in a section.
pub(super) fn read(seg: &Fields<'_>, names: &Names<'_>) -> Result<Segment, FormatError> {
    let name = seg.needed_text("type")?;
    let mut parts = name.split('+');
    let type_name = parts.next().unwrap_or_default();
    let segment = Segment {
        start_extent: extents(seg, "start_extent", 0)?,
        extent_count: extents(seg, "extent_count", 1)?,
        kind: kind(seg, type_name, names)?,
        type_name: type_name.to_owned(),
        type_flags: parts.map(str::to_owned).collect(),
        tags: seg.strings("tags")?,
        line: seg.line,
    };
    if let SegmentType::Striped { stripes, .. } = &segment.kind {
        let count = crate::bytes::length(stripes.len());
        if !segment.extent_count.is_multiple_of(count) {
            return Err(seg.wrong(
                "extent_count",
                segment.extent_count,
                format!("a multiple of {count} stripes"),
            ));
        }
    }
    Ok(segment)
}

fn extents(seg: &Fields<'_>, field: &'static str, least: u64) -> Result<u64, FormatError> {
    let found = seg.needed_number(field)?;
    if (least..=EXTENTS_MAX).contains(&found) {
        return Ok(found);
    }
    Err(seg.wrong(field, found, format!("{least} to {EXTENTS_MAX}, as LVM counts in 32 bits")))
}

fn kind(seg: &Fields<'_>, name: &str, names: &Names<'_>) -> Result<SegmentType, FormatError> {
    Ok(match name {
        "striped" | "linear" => striped(seg, names)?,
        "raid0" => raid(seg, RaidLevel::Raid0, names)?,
        "raid0_meta" => raid(seg, RaidLevel::Raid0Meta, names)?,
        "raid1" => raid(seg, RaidLevel::Raid1, names)?,
        "raid10" | "raid10_near" => raid(seg, RaidLevel::Raid10, names)?,
        _ if ["raid4", "raid5", "raid6"].iter().any(|level| name.starts_with(level)) => {
            raid(seg, RaidLevel::Parity, names)?
        }
        "mirror" => mirror(seg, names)?,
        "snapshot" => snapshot(seg, names)?,
        "thin-pool" => thin_pool(seg, names)?,
        "thin" => SegmentType::Thin {
            pool: seg.needed_lv("thin_pool", names)?,
            transaction_id: seg.needed_number("transaction_id")?,
            device_id: seg.needed_number("device_id")?,
            origin: seg.lv("origin", names)?,
            external_origin: seg.lv("external_origin", names)?,
            merge: seg.lv("merge", names)?,
        },
        "cache-pool" => SegmentType::CachePool {
            data: seg.needed_lv("data", names)?,
            metadata: seg.needed_lv("metadata", names)?,
            chunk_size: seg.number("chunk_size")?,
            mode: seg.text("cache_mode")?,
        },
        "cache" => SegmentType::Cache {
            pool: seg.needed_lv("cache_pool", names)?,
            origin: seg.needed_lv("origin", names)?,
            mode: seg.text("cache_mode")?,
            is_cleaning: seg.number("cleaner")?.is_some_and(|cleaner| cleaner != 0),
            parts: cache_parts(seg)?,
        },
        "writecache" => SegmentType::Writecache {
            fast: seg.needed_lv("writecache", names)?,
            origin: seg.needed_lv("origin", names)?,
        },
        "error" => SegmentType::Error,
        "zero" => SegmentType::Zero,
        _ => SegmentType::Unknown,
    })
}

fn striped(seg: &Fields<'_>, names: &Names<'_>) -> Result<SegmentType, FormatError> {
    let stripes = areas(seg, "stripes", "stripe_count", names)?;
    match stripes[..] {
        [area] => Ok(SegmentType::Linear(area)),
        _ => Ok(SegmentType::Striped { stripe_size: positive(seg, "stripe_size")?, stripes }),
    }
}

fn mirror(seg: &Fields<'_>, names: &Names<'_>) -> Result<SegmentType, FormatError> {
    Ok(SegmentType::Mirror {
        region_size: seg.number("region_size")?.unwrap_or(0),
        log: seg.lv("mirror_log", names)?,
        images: areas(seg, "mirrors", "mirror_count", names)?,
        extents_moved: seg.number("extents_moved")?,
    })
}

fn snapshot(seg: &Fields<'_>, names: &Names<'_>) -> Result<SegmentType, FormatError> {
    let (store, merging) = match (seg.lv("cow_store", names)?, seg.lv("merging_store", names)?) {
        (Some(store), None) => (store, false),
        (None, Some(store)) => (store, true),
        (None, None) => return Err(seg.missing("cow_store")),
        (Some(_), Some(_)) => return Err(seg.wrong("merging_store", "beside a cow_store", "one of the two")),
    };
    let chunk_size = positive(seg, "chunk_size")?;
    Ok(SegmentType::Snapshot { origin: seg.needed_lv("origin", names)?, store, chunk_size, merging })
}

fn thin_pool(seg: &Fields<'_>, names: &Names<'_>) -> Result<SegmentType, FormatError> {
    let mut messages = Vec::new();
    for message in seg.sections() {
        if message.path.name.starts_with("message") {
            messages.push(match (message.lv("create", names)?, message.number("delete")?) {
                (Some(lv), None) => Message::Create(lv),
                (None, Some(device)) => Message::Delete(device),
                _ => return Err(message.wrong("message", "another one", "either create or delete")),
            });
        }
    }
    Ok(SegmentType::ThinPool {
        metadata: seg.needed_lv("metadata", names)?,
        data: seg.needed_lv("pool", names)?,
        transaction_id: seg.needed_number("transaction_id")?,
        chunk_size: positive(seg, "chunk_size")?,
        discards: seg.text("discards")?,
        zero_new_blocks: seg.number("zero_new_blocks")?.unwrap_or(0) != 0,
        messages,
    })
}

fn cache_parts(seg: &Fields<'_>) -> Result<Option<CacheParts>, FormatError> {
    if seg.number("metadata_start")?.is_none() {
        return Ok(None);
    }
    let part = |start, len| {
        let part = (seg.needed_number(start)?, positive(seg, len)?);
        let end = part.0.checked_add(part.1).filter(|end| *end <= SECTORS_MAX);
        end.map(|_| part).ok_or_else(|| seg.wrong(start, part.0, format!("less than {SECTORS_MAX} sectors")))
    };
    let metadata = part("metadata_start", "metadata_len")?;
    Ok(Some(CacheParts { metadata, data: part("data_start", "data_len")? }))
}

fn raid(seg: &Fields<'_>, level: RaidLevel, names: &Names<'_>) -> Result<SegmentType, FormatError> {
    let striped = matches!(level, RaidLevel::Raid0 | RaidLevel::Raid0Meta);
    let count_field = if striped { "stripe_count" } else { "device_count" };
    let legs = count(seg, count_field)?;
    let (field, names_of_a_leg) = if level == RaidLevel::Raid0 { ("raid0_lvs", 1) } else { ("raids", 2) };
    let Some((entry, values)) = seg.values(field)? else { return Err(seg.missing(field)) };
    if values.len() != legs * names_of_a_leg {
        let expected = format!("{} for a {count_field} of {legs}", legs * names_of_a_leg);
        return Err(seg.wrong_at(entry, field, format!("{} names", values.len()), expected));
    }
    let lv = |value: &Value| {
        let lv = value.as_str().and_then(|name| names.lv(name));
        lv.ok_or_else(|| seg.wrong_at(entry, field, shown(value), "the name of an LV"))
    };
    let mut lvs = values.iter().map(lv).collect::<Result<Vec<_>, _>>()?.into_iter();
    let (mut images, mut metas) = (Vec::with_capacity(legs), Vec::new());
    while let Some(first) = lvs.next() {
        if names_of_a_leg == 2 {
            metas.push(first);
            images.extend(lvs.next());
        } else {
            images.push(first);
        }
    }
    let stripe_size = if level == RaidLevel::Raid1 || legs == 1 {
        seg.number("stripe_size")?.unwrap_or(0)
    } else {
        positive(seg, "stripe_size")?
    };
    Ok(SegmentType::Raid {
        level,
        images,
        metas,
        stripe_size,
        region_size: seg.number("region_size")?.unwrap_or(0),
        data_copies: seg.number("data_copies")?,
        reshape_extents: seg.number("reshape_count")?.unwrap_or(0),
    })
}

/// The areas of a `stripes` or `mirrors` array: names of PVs or LVs, each with its first extent.
fn areas(
    seg: &Fields<'_>,
    field: &'static str,
    count_field: &'static str,
    names: &Names<'_>,
) -> Result<Vec<Area>, FormatError> {
    let count = count(seg, count_field)?;
    let Some((entry, values)) = seg.values(field)? else { return Err(seg.missing(field)) };
    let (pairs, rest) = values.as_chunks::<2>();
    if pairs.len() != count || !rest.is_empty() {
        let expected = format!("{} for a {count_field} of {count}", count * 2);
        return Err(seg.wrong_at(entry, field, format!("{} names and extents", values.len()), expected));
    }
    let area = |[name, extent]: &[Value; 2]| {
        let known = name.as_str().and_then(|name| {
            let pv = names.pv(name).map(|pv| Area::Pv { pv, extent: 0 });
            pv.or_else(|| names.lv(name).map(|lv| Area::Lv { lv, extent: 0 }))
        });
        let known =
            known.ok_or_else(|| seg.wrong_at(entry, field, shown(name), "the name of a PV or an LV"))?;
        let extent = extent
            .as_integer()
            .and_then(|extent| u64::try_from(extent).ok())
            .ok_or_else(|| seg.wrong_at(entry, field, shown(extent), "an extent's number"))?;
        Ok(match known {
            Area::Pv { pv, .. } => Area::Pv { pv, extent },
            Area::Lv { lv, .. } => Area::Lv { lv, extent },
        })
    };
    pairs.iter().map(area).collect()
}

fn count(seg: &Fields<'_>, field: &'static str) -> Result<usize, FormatError> {
    let found = seg.needed_number(field)?;
    match usize::try_from(found) {
        Ok(0) => Err(seg.wrong(field, found, "at least 1")),
        Ok(count) if count <= AREAS_MAX => Ok(count),
        _ => Err(seg.error(ErrorKind::Limit, field, found, format!("at most {AREAS_MAX}"))),
    }
}

fn positive(seg: &Fields<'_>, field: &'static str) -> Result<u64, FormatError> {
    match seg.needed_number(field)? {
        found @ 1..=0xffff_ffff => Ok(found),
        found => Err(seg.wrong(field, found, "1 to 2^32 - 1 sectors")),
    }
}
