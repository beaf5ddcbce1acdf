//! Opening a file with O_DIRECT, and finding out what it demands.
//!
//! The kernel tells since 6.1 (statx's STATX_DIOALIGN), for the file systems that know. Otherwise, and to make sure, small reads
//! are tried; reading alters nothing. Where nothing works, the page cache is used, with a warning that says why.
//!
//! That a read is not refused does not prove that it is right: there was a kernel whose zram wrote beside an address that did not suit
//! it. So what is tried is compared with what a page gets, and with the memory around it, where nothing of anybody else lies.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxFlags, access, open, statx};
use rustix::io::Errno;

use super::{Direct, FileOptions, claim, lock};
use crate::aligned::Aligned;
use crate::error::LeafError;

/// What O_DIRECT demands, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alignment {
    /// Of memory addresses.
    pub memory: u32,
    /// Of offsets and lengths.
    pub offset: u32,
}

/// A file, and how it was opened.
pub(super) struct OpenedFile {
    pub file: OwnedFd,
    /// `None`: through the page cache.
    pub direct: Option<Alignment>,
    /// Why through the page cache, where nobody has asked for that.
    pub why_buffered: Option<String>,
}

/// Larger demands than this are not believed.
const ALIGNMENT_MAX: u32 = 64 << 10;

pub(super) fn open_buffered(path: &Path, name: &str, read_only: bool) -> Result<OwnedFd, LeafError> {
    // Not to block on a pipe that somebody gives for a disk.
    open(path, mode(read_only) | OFlags::NONBLOCK, Mode::empty()).map_err(|errno| {
        let remedy = match errno {
            // Who only looks at disks wants those that there are.
            Errno::NOENT if read_only => "; correct the path",
            Errno::NOENT => "; create it first (truncate -s 10G FILE), or correct the path",
            Errno::ACCESS | Errno::PERM if access(path, Access::READ_OK).is_err() => {
                "; this user may not even read it: `ls -lL` says who may"
            }
            Errno::ACCESS | Errno::PERM if !read_only => {
                "; this user may only read it: `ls -lL` and `lsattr` say why; with ',ro' or --read-only it is served so"
            }
            Errno::ROFS if !read_only => {
                "; it lies on a file system that is mounted read-only; with ',ro' or --read-only it is served so"
            }
            // A socket, or a device that is not there.
            Errno::ISDIR | Errno::NXIO => "; a disk is a regular file or a block device",
            _ => "",
        };
        LeafError::of_system(name, "open", errno.into(), remedy)
    })
}

fn mode(read_only: bool) -> OFlags {
    OFlags::CLOEXEC | if read_only { OFlags::RDONLY } else { OFlags::RDWR }
}

/// Opens the file for I/O: with O_DIRECT if asked for and possible; a block device that will be written to exclusively.
pub(super) fn open_best(
    path: &Path,
    name: &str,
    options: &FileOptions,
    is_device: bool,
    bytes: u64,
    plain: OwnedFd,
    warnings: &mut Vec<String>,
) -> Result<OpenedFile, LeafError> {
    let mut flags = mode(options.read_only);
    if is_device && !options.read_only && options.lock {
        flags |= OFlags::EXCL; // refused if it is mounted, swapped to, or part of an array or volume group
    }
    let fail = |errno: Errno| match errno {
        Errno::BUSY => claim::in_use(name, &plain),
        errno => LeafError::io(name, "open", errno),
    };
    let open = |flags| {
        let is_nobodys = |errno: &Errno| *errno == Errno::BUSY && claim::is_nobodys(&plain);
        lock::until_released(|| open(path, flags, Mode::empty()), is_nobodys)
    };
    let mut why_buffered = None;
    if options.direct != Direct::Off {
        let why = match open(flags | OFlags::DIRECT) {
            Ok(file) => match alignment(&file, bytes) {
                Ok(direct) => {
                    return Ok(OpenedFile { file, direct: Some(direct), why_buffered: None });
                }
                Err(why) => why,
            },
            Err(Errno::INVAL | Errno::OPNOTSUPP) => "it cannot be opened with O_DIRECT (EINVAL)".to_owned(),
            Err(errno) => return Err(fail(errno)),
        };
        let place = file_system(&plain);
        if options.direct == Direct::On {
            return Err(LeafError::unfit(
                name,
                format!("direct=on is not possible: {why} ({place})"),
                "use direct=auto or direct=off, or put it on a file system that has O_DIRECT, such as ext4 or XFS",
            ));
        }
        warnings.push(format!(
            "going through the page cache, because {why} ({place}): costs a copy of all data, and memory; \
             direct=off says that this is intended"
        ));
        why_buffered = Some(format!("{why} ({place})"));
    }
    let file = open(flags).map_err(fail)?;
    Ok(OpenedFile { file, direct: None, why_buffered })
}

/// What this file demands, or why O_DIRECT does not work on it.
fn alignment(file: &OwnedFd, bytes: u64) -> Result<Alignment, String> {
    let told = told_by_kernel(file)?;
    let candidates = match told {
        Some(told) => vec![told, Alignment { memory: 4096, ..told }],
        // Devices demand 4 bytes at least, and mostly no more; kernels before 6.0 wanted whole blocks.
        None => [512, 4096]
            .into_iter()
            .flat_map(|offset| [4, 512, 4096].map(|memory| Alignment { memory, offset }))
            .collect(),
    };
    let mut last = Errno::INVAL;
    for candidate in candidates {
        // The end of the disk must be within reach as well.
        if !bytes.is_multiple_of(u64::from(candidate.offset)) {
            return Err(format!(
                "O_DIRECT needs multiples of {} bytes here, and the size of {bytes} bytes is not one",
                candidate.offset
            ));
        }
        match try_read(file, candidate) {
            Ok(()) => return Ok(candidate),
            Err(errno) => last = errno,
        }
    }
    Err(format!("reads with O_DIRECT fail: {last}"))
}

/// What statx says; `None` if it does not say.
fn told_by_kernel(file: &OwnedFd) -> Result<Option<Alignment>, String> {
    let wanted = StatxFlags::from_bits_retain(STATX_DIOALIGN);
    let Ok(stat) = statx(file, "", AtFlags::EMPTY_PATH, wanted) else {
        return Ok(None);
    };
    if stat.stx_mask & STATX_DIOALIGN == 0 {
        return Ok(None);
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    if memory == 0 || offset == 0 {
        return Err("the file system has no O_DIRECT for this file (statx: alignment 0)".into());
    }
    let fits = |n: u32| n.is_power_of_two() && n <= ALIGNMENT_MAX;
    // Memory comes in pages, and sectors are the least unit of a disk.
    if !fits(memory) || !fits(offset) || memory > 4096 {
        return Err(format!(
            "O_DIRECT needs an alignment of {memory} bytes in memory and {offset} in the file"
        ));
    }
    Ok(Some(Alignment { memory, offset: offset.max(512) }))
}

/// From the kernel's include/uapi/linux/stat.h.
const STATX_DIOALIGN: u32 = 0x2000;

/// Reads one unit from the start, into memory aligned as little as the candidate allows; and compares that with what a page gets.
fn try_read(file: &OwnedFd, candidate: Alignment) -> Result<(), Errno> {
    let unit = candidate.offset as usize;
    let mut page = Aligned::new(unit.next_multiple_of(PAGE));
    let expected = match read_start(file, &mut page.bytes()[..unit]) {
        Ok(len) => &page.bytes()[..len],
        // An unreadable first sector says nothing about alignment; its reader will hear of it.
        Err(Errno::IO) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let skew = if candidate.memory < 4096 { candidate.memory as usize } else { 0 };
    let place = PAGE + skew..PAGE + skew + expected.len();
    // Whole pages, and one more on either side: who writes beside the place hurts nobody.
    let mut memory = Aligned::new((PAGE + skew + unit).next_multiple_of(PAGE) + PAGE);
    let bytes = memory.bytes();
    bytes.fill(AROUND);
    // No byte is by chance what it is to become.
    bytes[place.clone()].iter_mut().zip(expected).for_each(|(byte, expected)| *byte = !expected);
    match read_start(file, &mut bytes[PAGE + skew..][..unit]) {
        Ok(_) => {}
        Err(Errno::IO) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let is_whole = bytes[place.clone()] == *expected;
    let is_around = |byte: &u8| *byte == AROUND;
    let is_alone = bytes[..place.start].iter().all(is_around) && bytes[place.end..].iter().all(is_around);
    if is_whole && is_alone { Ok(()) } else { Err(Errno::FAULT) }
}

const PAGE: usize = 4096;

/// What memory holds into which nothing is read.
const AROUND: u8 = 0xa5;

fn read_start(file: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::pread(file, &mut *into, 0) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// What kind of file system a file lies on, for people.
pub(super) fn file_system(file: &OwnedFd) -> String {
    let Ok(stat) = rustix::fs::fstatfs(file) else {
        return "unknown file system".into();
    };
    // From statfs(2). The kernel has a number only; these are the ones that people meet.
    let name = match u64::try_from(stat.f_type).unwrap_or(0) {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x794c_7630 => "overlayfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x0102_1997 => "9p",
        0xff53_4d42 | 0xfe53_4d42 => "smb",
        0xca45_1a4e => "bcachefs",
        other => return format!("file system of type {other:#x}"),
    };
    format!("on {name}")
}
