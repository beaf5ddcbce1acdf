//! A regular file or a block device as a disk.
//!
//! ```text
//!   open: type and size ─▶ O_DIRECT and its alignment (direct) ─▶ loop devices over it (looped) ─▶ lock ─▶ queue limits (queue) ─▶ what fallocate can (probe)
//! ```
//!
//! | operation | regular file | block device |
//! | --- | --- | --- |
//! | flush | fdatasync | fdatasync |
//! | write with FUA | RWF_DSYNC, or a flush follows: the setting `fua` | likewise |
//! | discard | PUNCH_HOLE | BLKDISCARD |
//! | write-zeroes, may unmap | PUNCH_HOLE | PUNCH_HOLE |
//! | write-zeroes, must not unmap | ZERO_RANGE | BLKZEROOUT |
//!
//! Invariants:
//! 1. Opening alters no byte of the file.
//! 2. The lock is held as long as the source or any worker's handle lives, as they share the descriptor; or until it is let go of by name.
//! 3. A flush is always passed on: neither O_DIRECT nor a device that writes through makes a file's metadata durable.
//! 4. What somebody has cut off the file is not brought back as zeros, once that was seen: by a read that comes to the end, and at each
//!    flush where the file lies on a disk of this machine.

mod claim;
mod direct;
mod lock;
mod looped;
mod probe;
mod punch;
mod queue;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_engine::{
    Allocation, Decision, Env, Errno, FileId, FileOp, FileOpKind, Flags, Leaf, LeafIo, LeafShared,
    LeafSource, Limits, Op, Sector, Sectors, Submitted,
};
use rustix::fs::{FileType, SeekFrom, fstat, ioctl_blksszget, seek};

use crate::aligned::Aligned;
use crate::decisions::Told;
use crate::error::LeafError;
use punch::Punch;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where it is possible; a warning says why not where it is not.
    #[default]
    Auto,
    /// Or not at all.
    On,
    /// Use the page cache.
    Off,
}

/// How to open a file.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Never write to it.
    pub read_only: bool,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// Whether to lock it against other processes.
    pub lock: bool,
    /// The logical block of the disk, bytes, where that is told: a power of two, at least 512. None: a device's own, and 512 of a file.
    pub logical_block_size: Option<u32>,
    /// Whether it is only looked at: its limits are then those that it would have if it could be written.
    pub looks: bool,
}

impl FileOptions {
    /// Those of whoever gives none.
    pub const DEFAULT: FileOptions = FileOptions {
        read_only: false,
        direct: Direct::Auto,
        lock: true,
        logical_block_size: None,
        looks: false,
    };
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions::DEFAULT
    }
}

/// A regular file or a block device.
pub struct FileSource {
    name: String,
    file: Arc<OwnedFd>,
    is_device: bool,
    /// What O_DIRECT demands of offsets; 1 where the page cache is used.
    read_unit: u64,
    /// What is within the last whole block.
    sectors: AtomicU64,
    /// Bytes of which it has whole ones.
    block: u32,
    /// As [`LeafSource::block_bytes`].
    block_bytes: u32,
    limits: Limits,
    /// It is a block device that makes a FUA write durable by one command, and the page cache is bypassed.
    has_fua: bool,
    zero_range: bool,
    /// Whether workers may punch holes by themselves (see `punch`).
    punch_now: bool,
    /// It is on a disk of this machine: what it is asked about itself is answered without waiting for anybody.
    is_local: bool,
    warnings: Vec<String>,
    told: Told,
    shared: Arc<LeafShared>,
}

struct FileLeaf {
    // Holds the descriptor, and by it the lock.
    file: Arc<OwnedFd>,
    id: FileId,
    is_device: bool,
    zero_range: bool,
    punch: Punch,
}

impl FileSource {
    /// Opens `path`.
    pub fn open(path: &Path, options: &FileOptions) -> Result<FileSource, LeafError> {
        let name = path.display().to_string();
        let mut warnings = Vec::new();
        let plain = direct::open_buffered(path, &name, options.read_only)?;
        let stat = fstat(&plain).map_err(|error| LeafError::io(&name, "stat", error))?;
        let is_device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            other => {
                return Err(LeafError::unfit(
                    &name,
                    format!("is a {}", type_name(other)),
                    "a disk is a regular file or a block device",
                ));
            }
        };
        let bytes = size_of_file(&plain).map_err(|error| LeafError::io(&name, "size", error))?;
        let own = if is_device { ioctl_blksszget(&plain).map_or(512, |block| block.max(512)) } else { 512 };
        let block = options.logical_block_size.unwrap_or(own);
        if block < own {
            return Err(LeafError::unfit(
                &name,
                format!(
                    "logical_block_size={block} is less than the device's own logical block, {own} bytes"
                ),
                format!("leave the option out, or give {own} or more; the device reads and writes no less"),
            ));
        }
        // Nobody gets at what a device has of a last block: neither Linux's page cache nor we can read less of one.
        let sectors = whole_sectors(&name, bytes, block.into(), &mut warnings)?;
        // Exclusively, as long as this lives: the descriptor that does the I/O may be another one (O_DIRECT), so the
        // claim and the lock are taken by the one that stays.
        let opened =
            direct::open_best(path, &name, options, is_device, sectors.bytes(), plain, &mut warnings)?;
        if options.lock {
            looped::check(&name, &stat, options.read_only, &mut warnings)?;
        }
        let locked = options.lock && lock::take(&opened.file, &name, options.read_only, &mut warnings)?;
        let queue = queue::of(&stat, is_device, &opened.file);
        let mut limits = queue::limits(&queue, is_device, &opened);
        limits.read_only = if options.looks { queue.read_only } else { options.read_only };
        let mut zero_range = false;
        if queue.read_only && !options.read_only {
            return Err(LeafError::unfit(
                &name,
                "the device is read-only",
                "open it with ',ro', or make it writable (blockdev --setrw)",
            ));
        }
        if options.looks && !is_device {
            probe::presume(&opened.file, path, &mut limits);
        } else if !options.read_only && !is_device {
            zero_range = probe::fallocate(&opened.file, path, bytes, &mut limits, &mut warnings);
        }
        limits.widen_blocks(block);
        let is_local = is_device || punch::possible(&stat);
        Ok(FileSource {
            name,
            punch_now: locked && !is_device && is_local,
            is_local,
            file: Arc::new(opened.file),
            is_device,
            read_unit: opened.direct.map_or(1, |direct| u64::from(direct.offset)),
            sectors: AtomicU64::new(sectors.0),
            block,
            block_bytes: if is_device {
                limits.logical_block_size
            } else {
                options.logical_block_size.unwrap_or(0)
            },
            limits,
            // Of a file, its file system has records to write as well.
            has_fua: is_device && opened.direct.is_some() && queue.fua,
            zero_range,
            warnings,
            told: Told::new(options.direct, opened.direct.is_some(), opened.why_buffered),
            shared: Arc::default(),
        })
    }

    /// What its owner should know.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.read_unit > 1
    }

    pub(crate) fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    pub(crate) fn told_mut(&mut self) -> &mut Told {
        &mut self.told
    }
}

fn type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "folder",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "file of some other kind",
    }
}

fn size_of_file(file: &OwnedFd) -> io::Result<u64> {
    // For both kinds; nothing else uses the descriptor's position.
    Ok(seek(file, SeekFrom::End(0))?)
}

/// The sectors of whole blocks.
fn whole_sectors(
    name: &str,
    bytes: u64,
    block: u64,
    warnings: &mut Vec<String>,
) -> Result<Sectors, LeafError> {
    let rest = bytes % block;
    let sectors = Sectors::from_bytes_floor(bytes - rest);
    if sectors == Sectors::ZERO {
        // Where it holds something, a size would only hide that: images of empty disks are compressed to less.
        let remedy = match bytes {
            0 => "give the file a size (truncate -s 10G FILE)",
            _ => {
                "see what it is (`file FILE`); what is compressed is decompressed first (gunzip, unxz, unzstd)"
            }
        };
        return Err(LeafError::unfit(
            name,
            format!("its size is {bytes} bytes"),
            format!("a disk has at least one sector of {block} bytes: {remedy}"),
        ));
    }
    if rest > 0 {
        warnings.push(format!(
            "its size of {bytes} bytes is not a multiple of {block}: the last {rest} bytes are not part of the disk"
        ));
    }
    Ok(sectors)
}

impl LeafSource for FileSource {
    fn open(&self) -> Box<dyn Leaf> {
        let id = u32::try_from(self.file.as_raw_fd()).expect("an open descriptor is not negative");
        Box::new(FileLeaf {
            file: self.file.clone(),
            id: FileId(id),
            is_device: self.is_device,
            zero_range: self.zero_range,
            punch: Punch::new(self.punch_now),
        })
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        Sectors(self.sectors.load(Ordering::Relaxed))
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
    fn sectors_now(&self) -> Option<Sectors> {
        let bytes = self.is_local.then(|| size_of_file(&self.file).ok()).flatten();
        bytes.map(Sectors::from_bytes_floor)
    }
    fn grow(&self) -> Sectors {
        let now = self.is_local.then(|| size_of_file(&self.file).ok()).flatten();
        let now = now.map_or(0, |bytes| Sectors::from_bytes_floor(bytes - bytes % u64::from(self.block)).0);
        if self.shared.end().0 >= self.sectors().0 {
            self.sectors.fetch_max(now, Ordering::Relaxed);
        }
        self.sectors()
    }
    fn has_fua(&self) -> bool {
        self.has_fua
    }
    fn let_go(&self) {
        lock::give_back(&self.file);
    }
    fn decisions(&self) -> Vec<Decision> {
        self.told.decisions(&self.limits)
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let past_end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = offset.checked_add(into.len() as u64).ok_or_else(past_end)?;
        // A bounded piece at a time, widened to whole blocks.
        let mut at = offset;
        while at < end {
            let start = at / self.read_unit * self.read_unit;
            let piece_end = end.min(start + READ_NOW_BYTES_MAX).next_multiple_of(self.read_unit);
            let mut memory = Aligned::new(usize::try_from(piece_end - start).expect("a bounded piece"));
            let got = read_up_to(&self.file, start, memory.bytes())?;
            let (skip, done) = ((at - start) as usize, (at - offset) as usize);
            let take = (got.saturating_sub(skip)).min(into.len() - done);
            if take == 0 {
                return Err(past_end());
            }
            into[done..][..take].copy_from_slice(&memory.bytes()[skip..][..take]);
            at += take as u64;
        }
        Ok(())
    }
}

/// Bytes that `read_now` reads at once.
const READ_NOW_BYTES_MAX: u64 = 1 << 20;

/// Reads until `into` is full or the file ends.
fn read_up_to(file: &OwnedFd, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            // A short read at the end of a file leaves an offset that O_DIRECT does not take.
            Err(rustix::io::Errno::INVAL) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

impl Leaf for FileLeaf {
    #[inline]
    fn submit(&mut self, env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        let kind = match io.op {
            Op::Read => FileOpKind::Read,
            Op::Write => FileOpKind::Write { dsync: io.flags.has(Flags::FUA) },
            Op::Flush => FileOpKind::Sync,
            Op::Discard if self.is_device => FileOpKind::BlkDiscard,
            Op::Discard => FileOpKind::PunchHole,
            Op::WriteZeroes if !io.flags.has(Flags::NO_UNMAP) => FileOpKind::PunchHole,
            Op::WriteZeroes if self.is_device => FileOpKind::BlkZeroOut,
            Op::WriteZeroes if self.zero_range => FileOpKind::ZeroRange,
            Op::WriteZeroes => return Submitted::Now(Err(Errno::EOPNOTSUPP)),
        };
        let (offset, len) = (io.sector.bytes(), io.nr.bytes());
        if kind == FileOpKind::PunchHole
            && io.alone
            && let Some(result) = self.punch.now(&self.file, offset, len)
        {
            return Submitted::Now(result);
        }
        if io.op == Op::Write {
            self.punch.written(offset, len);
        }
        env.start(io.token, FileOp { file: self.id, kind, offset, len, data: io.data, fixed: io.fixed });
        Submitted::Started
    }

    /// By SEEK_DATA and SEEK_HOLE. What a file system or device cannot tell counts as data.
    fn allocation(&mut self, sector: Sector, nr: Sectors) -> Result<(Allocation, Sectors), Errno> {
        if self.is_device {
            return Ok((Allocation::Data, nr));
        }
        let at = sector.bytes();
        // Behind the end of a file that has become smaller nothing is a hole: what was there is lost, and who reads it hears of that.
        let end = fstat(&self.file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        let room = Sectors::from_bytes_ceil(end.saturating_sub(at)).min(nr);
        if room == Sectors::ZERO {
            return Ok((Allocation::Data, nr));
        }
        let data = match seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok((Allocation::Hole, room)), // a hole up to the end of the file
            Err(_) => return Ok((Allocation::Data, nr)),
        };
        // A sector that holds one byte of data is data.
        let hole = Sectors::from_bytes_floor(data.saturating_sub(at)).min(nr);
        if hole > Sectors::ZERO {
            return Ok((Allocation::Hole, hole));
        }
        let end = seek(&self.file, SeekFrom::Hole(data)).unwrap_or(u64::MAX);
        let len = Sectors::from_bytes_ceil(end.saturating_sub(at)).min(nr);
        Ok((Allocation::Data, Sectors(len.0.max(1))))
    }
}
