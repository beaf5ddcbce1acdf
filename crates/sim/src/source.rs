//! The leaf `sim`: a simulated device as the engine's leaf queue sees it.
//!
//! Every request is checked against the limits that the device reported: a queue that exceeds them fails here, loudly,
//! and not on some drive.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use blockwork_engine::{
    Env, FileId, FileOp, FileOpKind, Flags, Leaf, LeafIo, LeafShared, LeafSource, Limits, Op, SECTOR,
    Sectors, Submitted,
};
use blockwork_memory::bytes_in;

use crate::faults::Lies;

/// A simulated device as a source of leaves.
#[derive(Debug)]
pub struct SimSource {
    name: String,
    device: FileId,
    sectors: Sectors,
    limits: Limits,
    shared: Arc<LeafShared>,
    lies: Lies,
    /// What the device held when this was made: a source may go to other threads, where its world cannot go.
    content: BTreeMap<u64, [u8; 512]>,
}

impl SimSource {
    pub(crate) fn new(
        name: String,
        device: FileId,
        (sectors, limits): (Sectors, Limits),
        lies: Lies,
        content: BTreeMap<u64, [u8; 512]>,
    ) -> SimSource {
        SimSource { name, device, sectors, limits, shared: Arc::default(), lies, content }
    }
    /// Its settings, to alter them before any worker opens it.
    pub fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }
}

impl LeafSource for SimSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(SimLeaf {
            name: self.name.clone(),
            device: self.device,
            sectors: self.sectors,
            limits: self.limits.clone(),
            lies: self.lies,
        })
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
    /// Reads what the device held when the source was made.
    fn read_now(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= self.sectors.bytes());
        if end.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut at = offset;
        let mut left = into;
        while !left.is_empty() {
            let skip = usize::try_from(at % SECTOR).expect("smaller than a sector");
            let take = left.len().min(512 - skip);
            let (now, later) = left.split_at_mut(take);
            match self.content.get(&(at / SECTOR)) {
                Some(sector) => now.copy_from_slice(&sector[skip..skip + take]),
                None => now.fill(0),
            }
            at += take as u64;
            left = later;
        }
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
}

struct SimLeaf {
    name: String,
    device: FileId,
    sectors: Sectors,
    limits: Limits,
    lies: Lies,
}

impl Leaf for SimLeaf {
    fn submit(&mut self, env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        self.check(&io);
        let kind = match io.op {
            Op::Read => FileOpKind::Read,
            Op::Write => FileOpKind::Write { dsync: io.flags.has(Flags::FUA) && !self.lies.fua },
            Op::Flush if self.lies.flush => return Submitted::Now(Ok(())),
            Op::Flush => FileOpKind::Sync,
            Op::Discard => FileOpKind::BlkDiscard,
            Op::WriteZeroes => FileOpKind::BlkZeroOut,
        };
        let op = FileOp {
            file: self.device,
            kind,
            offset: io.sector.bytes(),
            len: io.nr.bytes(),
            data: if io.op.has_data() { io.data } else { &[] },
            fixed: io.fixed,
        };
        env.start(io.token, op);
        Submitted::Started
    }
}

impl SimLeaf {
    /// The queue's promises (see `Limits`).
    fn check(&self, io: &LeafIo<'_>) {
        let (limits, name) = (&self.limits, &self.name);
        let block = u64::from(limits.logical_block_size) / SECTOR;
        let what = format_args!("{name}: {:?} {:?} {}+{}", io.op, io.flags, io.sector, io.nr).to_string();
        if io.op == Op::Flush {
            assert!(limits.write_cache, "{what}: there is no cache to flush");
            assert_eq!(io.nr, Sectors::ZERO, "{what}");
            return;
        }
        assert!(io.nr > Sectors::ZERO, "{what}: an empty request");
        assert!((io.sector + io.nr).0 <= self.sectors.0, "{what}: beyond the end at {}", self.sectors);
        assert!(
            io.sector.0.is_multiple_of(block) && io.nr.0.is_multiple_of(block),
            "{what}: logical_block_size"
        );
        assert!(!limits.read_only || io.op == Op::Read, "{what}: the device is read-only");
        if io.flags.has(Flags::FUA) {
            assert!(io.op == Op::Write, "{what}: only writes have FUA on a device");
        }
        match io.op {
            Op::Read | Op::Write => self.check_transfer(io, &what),
            Op::Discard => {
                let unit = (u64::from(limits.discard_granularity) / SECTOR).max(1);
                let at_end = (io.sector + io.nr).0 == self.sectors.0;
                assert!(limits.discards(), "{what}: the device has no discard");
                assert!(io.nr <= limits.max_discard, "{what}: discard_max_bytes");
                assert!(io.sector.0.is_multiple_of(unit), "{what}: discard_granularity {unit}");
                assert!(at_end || io.nr.0.is_multiple_of(unit), "{what}: discard_granularity {unit}");
            }
            Op::WriteZeroes => {
                assert!(
                    io.nr <= limits.max_write_zeroes,
                    "{what}: write_zeroes_max_bytes {}",
                    limits.max_write_zeroes
                );
            }
            Op::Flush => unreachable!("returned above"),
        }
    }

    fn check_transfer(&self, io: &LeafIo<'_>, what: &str) {
        let limits = &self.limits;
        assert!(io.nr <= limits.max_sectors, "{what}: max_sectors {}", limits.max_sectors);
        let segments = io.data.len();
        assert!(
            segments <= limits.max_segments as usize,
            "{what}: {segments} of {} segments",
            limits.max_segments
        );
        assert_eq!(bytes_in(io.data) as u64, io.nr.bytes(), "{what}: its memory");
        let chunk = limits.chunk_sectors;
        let last = io.sector.0 + io.nr.0 - 1;
        let of = |sector: u64| sector.checked_div(chunk.0);
        assert_eq!(of(io.sector.0), of(last), "{what}: crosses a boundary of chunk_sectors {chunk}");
        let align = limits.dma_alignment as usize;
        for segment in io.data {
            let address = segment.as_ptr().addr();
            assert!(address.is_multiple_of(align), "{what}: memory at {address:#x}, dma_alignment {align}");
            assert!(segment.len().is_multiple_of(align), "{what}: a segment of {} bytes", segment.len());
        }
    }
}
