//! A thread for the few operations that block and that the ring has not: BLKDISCARD and BLKZEROOUT on kernels without
//! commands for block devices. Started when the first one comes, joined when its environment is dropped.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use blockwork_engine::Notify;

// From the kernel's include/uapi/linux/fs.h: _IO(0x12, 119) and _IO(0x12, 127).
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

/// What to do with a range of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeCall {
    Discard,
    ZeroOut,
}

struct Job {
    slot: u64,
    file: OwnedFd,
    call: RangeCall,
    /// Start and length, in bytes.
    range: [u64; 2],
}

/// Slots whose operations have been done, with their results.
type Finished = Arc<Mutex<Vec<(u64, i32)>>>;

/// The thread, if it was needed, and what it has been asked for.
#[derive(Default)]
pub(crate) struct Helper {
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
    finished: Finished,
    /// Operations given to it that were not collected yet.
    outstanding: usize,
}

impl Helper {
    /// Has `call` done on `range` (start and length in bytes) of the device `fd`.
    ///
    /// The helper works on a duplicate of the descriptor: its number may mean another device by the time it gets there.
    pub fn start(
        &mut self,
        slot: u64,
        fd: i32,
        call: RangeCall,
        range: [u64; 2],
        notify: &Arc<dyn Notify>,
    ) -> Result<(), i32> {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        if fd < 0 {
            return Err(libc::EBADF);
        }
        // SAFETY: only borrowed for the duration of `dup`, which tells a number that is not open by EBADF.
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(errno)?;
        if self.thread.is_none() {
            let (sender, jobs) = mpsc::channel::<Job>();
            let (finished, notify) = (self.finished.clone(), notify.clone());
            let thread = std::thread::Builder::new()
                .name("blk-ioctl".into())
                .spawn(move || {
                    for job in jobs {
                        let result = range_ioctl(&job);
                        drop(job.file);
                        finished.lock().expect("no holder of this lock panics").push((job.slot, result));
                        notify.notify();
                    }
                })
                .map_err(errno)?;
            self.thread = Some((sender, thread));
        }
        let (sender, _) = self.thread.as_ref().expect("just started");
        sender.send(Job { slot, file, call, range }).expect("the thread lives as long as its sender");
        self.outstanding += 1;
        Ok(())
    }

    /// Moves what has been done to `out`. Costs nothing while nothing was asked for.
    pub fn collect(&mut self, out: &mut Vec<(u64, i32)>) {
        if self.outstanding > 0 {
            let mut finished = self.finished.lock().expect("no holder of this lock panics");
            self.outstanding -= finished.len();
            out.append(&mut finished);
        }
    }

    /// Waits for all that it was asked for, and for its end.
    pub fn join(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // It has nothing that could panic; and if it had, there is nobody to tell.
            let _ = thread.join();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.join();
    }
}

fn range_ioctl(job: &Job) -> i32 {
    let request = match job.call {
        RangeCall::Discard => BLKDISCARD,
        RangeCall::ZeroOut => BLKZEROOUT,
    };
    loop {
        // SAFETY: both requests read two u64 from their argument, which is live, and touch no other memory of ours.
        let result = unsafe { libc::ioctl(job.file.as_raw_fd(), request, job.range.as_ptr()) };
        if result >= 0 {
            return 0;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            errno => return -errno.unwrap_or(libc::EIO),
        }
    }
}
