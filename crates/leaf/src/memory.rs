//! A disk in memory: sparse, shared by all workers, gone when it is closed.
//!
//! It is divided into extents of 64 KiB, which exist once something was written to them. Extents are spread over shards,
//! each with its lock, held while one extent's bytes are copied and never two at once.
//!
//! Invariants:
//! 1. What is not in a shard reads as zeros.
//! 2. A sector is read or written under its shard's lock: it is never seen half written.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, MutexGuard};

use blockwork_engine::{
    Allocation, AtOnce, Env, Errno, Flags, Leaf, LeafIo, LeafShared, LeafSource, Limits, Lock, LockSnapshot,
    Op, Sector, Sectors, Submitted,
};
use blockwork_memory::Segment;

use crate::error::LeafError;
use crate::open::check_size;

const EXTENT: usize = 64 << 10;
const EXTENT_BYTES: u64 = EXTENT as u64;
const SHARDS: usize = 64;

type Shard = HashMap<u64, Box<[u8; EXTENT]>>;

/// A disk in memory.
pub struct MemorySource {
    name: String,
    sectors: Sectors,
    limits: Limits,
    shared: Arc<LeafShared>,
    extents: Arc<Extents>,
}

struct Extents {
    shards: [Lock<Shard>; SHARDS],
}

struct MemoryLeaf {
    extents: Arc<Extents>,
}

/// A part of an I/O that lies in one extent.
struct Piece {
    extent: u64,
    /// Within the extent, bytes.
    start: usize,
    len: usize,
}

impl MemorySource {
    /// A disk of `bytes` bytes, all zero, that takes no memory yet.
    pub fn new(bytes: u64, name: &str) -> Result<MemorySource, LeafError> {
        let sectors = check_size(name, bytes)?;
        let limits = Limits {
            max_sectors: Sectors(2560),
            // Smaller ones are done too (as zeros), but free nothing.
            discard_granularity: 4096,
            hw_fixed: false,
            ..Limits::default()
        };
        let extents = Arc::new(Extents { shards: std::array::from_fn(|_| Lock::default()) });
        Ok(MemorySource { name: name.to_owned(), sectors, limits, shared: Arc::default(), extents })
    }

    pub(crate) fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Bytes of memory that its extents take.
    pub fn resident_bytes(&self) -> u64 {
        let count = |shard: &Lock<Shard>| shard.lock().len() as u64 * EXTENT_BYTES;
        self.extents.shards.iter().map(count).sum()
    }
}

impl LeafSource for MemorySource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(MemoryLeaf { extents: self.extents.clone() })
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn read_now(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= self.sectors.bytes());
        if end.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        for piece in pieces(offset, into.len() as u64) {
            let to = &mut into[done..][..piece.len];
            match self.extents.shard(piece.extent).get(&piece.extent) {
                Some(extent) => to.copy_from_slice(&extent[piece.start..][..piece.len]),
                None => to.fill(0),
            }
            done += piece.len;
        }
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
    fn locks(&self) -> Vec<LockSnapshot> {
        let shards = self.extents.shards.iter().map(|shard| shard.snapshot(""));
        vec![self.shared.locks(&self.name), LockSnapshot::sum(format!("{}: memory", self.name), shards)]
    }
}

impl AtOnce for MemoryLeaf {
    fn transfer(&mut self, op: Op, sector: Sector, data: &[Segment]) -> Result<(), Errno> {
        let extents = &self.extents;
        if op == Op::Read {
            each_part(sector.bytes(), data, |piece, segment, at| extents.read(piece, segment, at));
        } else {
            each_part(sector.bytes(), data, |piece, segment, at| extents.write(piece, segment, at));
        }
        Ok(())
    }
}

impl Leaf for MemoryLeaf {
    fn submit(&mut self, _env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        let offset = io.sector.bytes();
        match io.op {
            Op::Read | Op::Write => return Submitted::Now(self.transfer(io.op, io.sector, io.data)),
            Op::Flush => {}
            Op::WriteZeroes if io.flags.has(Flags::NO_UNMAP) => {
                pieces(offset, io.nr.bytes()).for_each(|piece| self.extents.zero(&piece, true));
            }
            Op::Discard | Op::WriteZeroes => self.extents.free(offset, io.nr.bytes()),
        }
        Submitted::Now(Ok(()))
    }

    fn at_once(&mut self) -> Option<&mut dyn AtOnce> {
        Some(self)
    }

    fn allocation(&mut self, sector: Sector, nr: Sectors) -> Result<(Allocation, Sectors), Errno> {
        let mut pieces = pieces(sector.bytes(), nr.bytes());
        let first = pieces.next().ok_or(Errno::EINVAL)?;
        let there = self.extents.has(first.extent);
        let more =
            pieces.take_while(|piece| self.extents.has(piece.extent) == there).map(|piece| piece.len as u64);
        let bytes = first.len as u64 + more.take(ALLOCATION_EXTENTS).sum::<u64>();
        Ok((if there { Allocation::Data } else { Allocation::Hole }, Sectors::from_bytes_floor(bytes)))
    }
}

/// Extents that one call of `allocation` looks at, at most: it is asked about far more than what will be wanted of the answer, if
/// what lies above is finely divided.
const ALLOCATION_EXTENTS: usize = 128;

impl Extents {
    fn shard(&self, extent: u64) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(extent % SHARDS as u64).expect("a remainder is small");
        self.shards[index].lock()
    }

    fn has(&self, extent: u64) -> bool {
        self.shard(extent).contains_key(&extent)
    }

    fn read(&self, piece: &Piece, segment: &Segment, at: usize) {
        match self.shard(piece.extent).get(&piece.extent) {
            Some(extent) => segment.write_at(at, &extent[piece.start..][..piece.len]),
            None => segment.slice(at, piece.len).fill(0),
        }
    }

    fn write(&self, piece: &Piece, segment: &Segment, at: usize) {
        let mut shard = self.shard(piece.extent);
        let extent = shard.entry(piece.extent).or_insert_with(blank);
        segment.read_at(at, &mut extent[piece.start..][..piece.len]);
    }

    fn zero(&self, piece: &Piece, allocate: bool) {
        let mut shard = self.shard(piece.extent);
        if allocate {
            shard.entry(piece.extent).or_insert_with(blank);
        }
        if let Some(extent) = shard.get_mut(&piece.extent) {
            extent[piece.start..][..piece.len].fill(0);
        }
    }

    /// Zeros a range; extents that lie in it whole go away.
    fn free(&self, offset: u64, len: u64) {
        let end = offset + len;
        let (first_whole, end_whole) = (offset.div_ceil(EXTENT_BYTES), end / EXTENT_BYTES);
        if first_whole >= end_whole {
            return pieces(offset, len).for_each(|piece| self.zero(&piece, false));
        }
        let head = first_whole * EXTENT_BYTES - offset;
        let tail = end_whole * EXTENT_BYTES;
        pieces(offset, head).chain(pieces(tail, end - tail)).for_each(|piece| self.zero(&piece, false));
        // By what is there or by number, whichever is less: the range may be a whole disk of terabytes.
        if end_whole - first_whole < 1024 {
            (first_whole..end_whole).for_each(|extent| drop(self.shard(extent).remove(&extent)));
        } else {
            let gone = |extent: &u64| (first_whole..end_whole).contains(extent);
            self.shards.iter().for_each(|shard| shard.lock().retain(|extent, _| !gone(extent)));
        }
    }
}

fn blank() -> Box<[u8; EXTENT]> {
    vec![0; EXTENT].into_boxed_slice().try_into().expect("an extent's length")
}

/// The parts of a byte range that lie in one extent each.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let within = at % EXTENT_BYTES;
        let step = (end - at).min(EXTENT_BYTES - within);
        let small = |n: u64| usize::try_from(n).expect("not more than an extent");
        let piece = Piece { extent: at / EXTENT_BYTES, start: small(within), len: small(step) };
        at += step;
        Some(piece)
    })
}

/// Calls `act` for each part of an I/O that lies in one extent and one segment, with the place within the segment.
fn each_part(mut offset: u64, data: &[Segment], mut act: impl FnMut(&Piece, &Segment, usize)) {
    for segment in data {
        let mut at = 0;
        for piece in pieces(offset, segment.len() as u64) {
            act(&piece, segment, at);
            at += piece.len;
        }
        offset += segment.len() as u64;
    }
}
