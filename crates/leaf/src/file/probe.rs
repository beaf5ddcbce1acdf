//! What fallocate(2) can do on a file, tried without altering it; or on one beside it, where it must not even be tried.

use std::os::fd::OwnedFd;
use std::path::Path;

use blockwork_engine::{Limits, SECTOR, Sectors};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate as call, fstatfs, open};
use rustix::io::Errno;

use super::direct::file_system;

/// The most that one fallocate takes: its offsets are signed.
const FALLOCATE_BYTES_MAX: u64 = i64::MAX as u64;

/// Fills in the limits of discards and write-zeroes; tells whether ZERO_RANGE works.
pub(super) fn fallocate(
    file: &OwnedFd,
    path: &Path,
    bytes: u64,
    limits: &mut Limits,
    warnings: &mut Vec<String>,
) -> bool {
    let block = block_size(file);
    // One block that starts beyond the end of the file, at a block's boundary: there is nothing to punch, and with
    // KEEP_SIZE the end stays where it is.
    let Some(beyond) = bytes
        .checked_next_multiple_of(u64::from(block))
        .filter(|at| at + u64::from(block) <= FALLOCATE_BYTES_MAX)
    else {
        return false;
    };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = retry(|| call(file, punch, beyond, u64::from(block))) {
        warnings.push(format!(
            "no discards, because holes cannot be punched: {errno} ({}); zeros will be written",
            file_system(file)
        ));
        return false;
    }
    can_punch(block, limits);
    zero_range_works(path, block)
}

/// Fills in the same limits as [`fallocate`] without touching the file, for who only looks: by what a nameless file in the same folder can
/// do. Where nobody may write, holes are presumed; where such files cannot be made at all, as on network file systems, they are not.
pub(super) fn presume(file: &OwnedFd, path: &Path, limits: &mut Limits) {
    let block = block_size(file);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let works = match nameless_beside(path) {
        Ok(nameless) => retry(|| call(&nameless, punch, 0, u64::from(block))).is_ok(),
        Err(errno) => matches!(errno, Errno::ACCESS | Errno::PERM | Errno::ROFS),
    };
    if works {
        can_punch(block, limits);
    }
}

fn can_punch(block: u32, limits: &mut Limits) {
    let whole = Sectors(FALLOCATE_BYTES_MAX / u64::from(block) * (u64::from(block) / SECTOR));
    limits.discard_granularity = block;
    limits.max_hw_discard = whole;
    limits.max_discard = whole;
    limits.max_write_zeroes = whole;
}

/// Whether ZERO_RANGE works on this file system. It would preallocate blocks wherever it is tried in the file itself, so
/// it is tried on a nameless file in the same folder. Where that cannot be made: probably; if not, the engine hears of
/// it at the first request, and writes zeros instead.
fn zero_range_works(path: &Path, block: u32) -> bool {
    let Ok(nameless) = nameless_beside(path) else { return true };
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    retry(|| call(&nameless, zero, 0, u64::from(block))) != Err(Errno::OPNOTSUPP)
}

/// A file without a name, in the same folder.
fn nameless_beside(path: &Path) -> Result<OwnedFd, Errno> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

/// The unit in which the file system frees space.
fn block_size(file: &OwnedFd) -> u32 {
    let told = fstatfs(file).ok().and_then(|stat| u32::try_from(stat.f_bsize).ok());
    // Network file systems say how much they like to transfer, up to megabytes.
    told.filter(|size| size.is_power_of_two() && (512..=64 << 10).contains(size)).unwrap_or(4096)
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
