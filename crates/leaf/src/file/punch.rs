//! Punching holes at once, where that is safe and quick.
//!
//! io_uring has no fallocate that does not block, so it gives each one to a kernel thread and takes it back: several times what
//! the call itself costs where there is nothing to free, which is what mkfs and fstrim on a sparse file mostly ask for.
//!
//! Invariants: the call is made at once only if
//! 1. no request of this worker is in flight on the file ([`LeafIo::alone`](blockwork_engine::LeafIo)). fallocate waits until
//!    no direct I/O on the inode is in flight (inode_dio_wait), and io_uring may leave the completion of a direct write to the
//!    task that submitted it (IOCB_DIO_CALLER_COMP, DEFER_TASKRUN): a worker that waits in fallocate for its own write waits
//!    for ever. Other workers' and processes' I/O completes without us;
//! 2. nobody else in this process has the file open for I/O, or 1 would say nothing: the lock sees to that;
//! 3. the file system lies on a block device of this machine: it answers lseek(SEEK_DATA) from what it has in memory or on that disk,
//!    and does not ask a server, for which the worker would wait, and with it all its clients. (A few such file systems do ask: a
//!    process, fuseblk's, or each other, those of clusters. To them 5 applies.);
//! 4. the range holds no data, as far as this worker knows: it remembers where lseek found the next data, and what it has
//!    itself written since. That others have written there costs time only. Preallocated space is no data but is given back all the same, so the call is made even
//!    where there seems to be nothing to punch;
//! 5. such calls were quick of late: one that was not (much preallocated space, a journal that was full) sends some of the
//!    next ones through the ring, and twice as many each time that it happens again.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use blockwork_engine::Errno;
use rustix::fs::{FallocateFlags, SeekFrom, Stat, fallocate, major, minor, seek};

/// What a worker may spend on one call; those that wait behind it wait that long. Well above what a busy machine's
/// scheduler takes the processor away for.
const QUICK: Duration = Duration::from_millis(4);
/// Calls that go through the ring after one that took longer, at first (it may be only that the worker had to wait for
/// a processor) and at most.
const PENANCE_MIN: u32 = 8;
const PENANCE_MAX: u32 = 1024;

/// A worker's view of whether to punch at once.
pub(super) struct Punch {
    possible: bool,
    /// Calls that still go through the ring.
    penance: u32,
    /// How many will, after the next one that is not quick.
    next_penance: u32,
    /// Bytes that held no data when lseek was last asked, and that this worker has not written since.
    empty: Range<u64>,
}

impl Punch {
    /// `possible`: as [`possible`] said of this file, and it is locked.
    pub fn new(possible: bool) -> Punch {
        Punch { possible, penance: 0, next_penance: PENANCE_MIN, empty: 0..0 }
    }

    /// Punches the hole if all invariants hold; the caller vouches for the first. `None`: do it through the ring.
    pub fn now(&mut self, file: &OwnedFd, offset: u64, len: u64) -> Option<Result<(), Errno>> {
        if !self.possible {
            return None;
        }
        if self.penance > 0 {
            self.penance -= 1;
            return None;
        }
        let began = Instant::now();
        let done = self.holds_no_data(file, offset, len).then(|| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // EINTR is the queue's to try again, as with what comes from the ring.
            fallocate(file, how, offset, len).map_err(|errno| Errno(errno.raw_os_error()))
        });
        if began.elapsed() > QUICK {
            self.penance = self.next_penance;
            self.next_penance = (self.next_penance * 2).min(PENANCE_MAX);
        } else {
            self.next_penance = PENANCE_MIN;
        }
        done
    }

    /// This worker writes there.
    #[inline]
    pub fn written(&mut self, offset: u64, len: u64) {
        if offset < self.empty.end && self.empty.start < offset.saturating_add(len) {
            self.empty = 0..0;
        }
    }

    fn holds_no_data(&mut self, file: &OwnedFd, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        if self.empty.start <= offset && end <= self.empty.end {
            return true;
        }
        let next = match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => u64::MAX, // none up to the end of the file
            Err(_) => return false,
        };
        self.empty = offset..next;
        end <= next
    }
}

/// Whether invariant 3 holds of the file with this status.
pub(super) fn possible(stat: &Stat) -> bool {
    std::path::Path::new(&format!("/sys/dev/block/{}:{}", major(stat.st_dev), minor(stat.st_dev))).exists()
}
