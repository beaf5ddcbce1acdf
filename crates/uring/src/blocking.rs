//! Threads for operations that block: BLKDISCARD and BLKZEROOUT, on kernels without commands for block devices in the ring, and all
//! operations on files where there is no ring. Started when they are needed, joined when their environment is dropped, unless a call
//! does not end: then its thread is left to itself.
//!
//! Invariant: what a call's pointers lead to is touched until its result is in the list of those that are finished, and not after. If it
//! never is, which [`Helpers::close`] tells, that memory must never be freed.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use blockwork_engine::Notify;

// From the kernel's include/uapi/linux/fs.h: _IO(0x12, 119) and _IO(0x12, 127).
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

/// Threads of one environment, for all leaves of its worker: about what a disk works on at once. Where one disk has as many calls under
/// way, the others wait for it.
const THREADS_MAX: usize = 32;

/// An operation on a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// BLKDISCARD of a range: start and length, in bytes.
    Discard([u64; 2]),
    /// BLKZEROOUT of a range.
    ZeroOut([u64; 2]),
    /// Reads into memory.
    Read(Vectors),
    /// Writes memory; with the flags of pwritev2(2).
    Write(Vectors, libc::c_int),
    /// fdatasync.
    Sync,
    /// fallocate: mode, start and length.
    Allocate(libc::c_int, [u64; 2]),
}

/// Memory, and the place in the file that it is read from or written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors {
    pub first: *const libc::iovec,
    pub count: libc::c_int,
    pub offset: libc::off_t,
}

/// A place in a file, or a length, for a call that takes it signed. One that does not fit becomes one that is refused by EINVAL (-1 would
/// not be: it means the file's own position).
pub(crate) fn signed(n: u64) -> libc::off_t {
    i64::try_from(n).unwrap_or(i64::MIN)
}

// SAFETY: the vectors, and the memory that they list, belong to a slot, which stays where it is and is neither altered nor released
// until the call's result was collected; the kernel alone reads and writes that memory meanwhile.
unsafe impl Send for Vectors {}

struct Job {
    slot: u64,
    file: Arc<OwnedFd>,
    call: Call,
}

/// What the threads share with the worker.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    work: Condvar,
    /// There will be no more jobs, and none is being done.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    /// Jobs that threads are at.
    running: usize,
    closed: bool,
    /// Slots whose operations have been done, with their results.
    finished: Vec<(u64, i32)>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// The next job; none when there will be no more.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running += 1;
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self.work.wait(state).expect("no holder of this lock panics");
            state.idle -= 1;
        }
    }

    /// A job that [`Desk::next`] gave has been done.
    fn done(&self, slot: u64, result: i32) {
        let mut state = self.lock();
        state.finished.push((slot, result));
        state.running -= 1;
        if state.closed && state.running == 0 {
            self.ended.notify_one();
        }
    }
}

/// The threads, as far as they were needed, and what they have been asked for.
#[derive(Default)]
pub(crate) struct Helpers {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    /// Files of this turn, by their numbers: duplicates, which the threads work on. A number may mean another file by the time that they
    /// get there, but not before the turn's wait has ended.
    files: Vec<(RawFd, Arc<OwnedFd>)>,
    /// Operations given to them that were not collected yet.
    outstanding: usize,
}

impl Helpers {
    /// Has `call` made on the file `fd`, by a thread; by this one, if no thread can be made.
    ///
    /// # Errors
    ///
    /// EBADF: it is not open. EAGAIN: no descriptor is left for now, which is no fault of the file's.
    pub fn start(&mut self, slot: u64, fd: RawFd, call: Call, notify: &Arc<dyn Notify>) -> Result<(), i32> {
        let file = self.file(fd)?;
        let job = Job { slot, file, call };
        self.outstanding += 1;
        let wanted = {
            let state = self.desk.lock();
            state.idle <= state.jobs.len()
        };
        if wanted && self.threads.len() < THREADS_MAX {
            match spawn(self.desk.clone(), notify.clone()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => {
                    tell_once(&error);
                    let result = job.run();
                    self.desk.lock().finished.push((slot, result));
                    notify.notify();
                    return Ok(());
                }
                Err(_) => {} // those that there are will get to it
            }
        }
        self.desk.lock().jobs.push_back(job);
        self.desk.work.notify_one();
        Ok(())
    }

    fn file(&mut self, fd: RawFd) -> Result<Arc<OwnedFd>, i32> {
        if fd < 0 {
            return Err(libc::EBADF);
        }
        if let Some((_, file)) = self.files.iter().rev().find(|(number, _)| *number == fd) {
            return Ok(file.clone());
        }
        // SAFETY: only borrowed for the duration of `dup`, which tells a number that is not open by EBADF.
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => libc::EAGAIN,
            errno => errno.unwrap_or(libc::EIO),
        })?;
        let file = Arc::new(file);
        self.files.push((fd, file.clone()));
        Ok(file)
    }

    /// The turn has ended: from now on, numbers may mean other files.
    #[inline]
    pub fn end_turn(&mut self) {
        self.files.clear();
    }

    /// Moves what has been done to `out`. Costs nothing while nothing was asked for.
    pub fn collect(&mut self, out: &mut Vec<(u64, i32)>) {
        if self.outstanding > 0 {
            let finished = &mut self.desk.lock().finished;
            self.outstanding -= finished.len();
            out.append(finished);
        }
    }

    /// Ends them: what none of them has begun completes by ECANCELED, and what they are at is waited for, for at most `patience`. False
    /// if some of that has not ended: then a thread still works on its memory, and is left to itself.
    pub fn close(&mut self, patience: Duration) -> bool {
        let mut state = self.desk.lock();
        state.closed = true;
        let State { jobs, finished, .. } = &mut *state;
        finished.extend(jobs.drain(..).map(|job| (job.slot, -libc::ECANCELED)));
        self.desk.work.notify_all();
        let runs = |state: &mut State| state.running > 0;
        let waited = self.desk.ended.wait_timeout_while(state, patience, runs);
        let (state, waited) = waited.expect("no holder of this lock panics");
        drop(state);
        if waited.timed_out() {
            self.threads.clear();
            return false;
        }
        for thread in self.threads.drain(..) {
            // It has nothing that could panic; and if it had, there is nobody to tell.
            let _ = thread.join();
        }
        true
    }
}

/// Says once in a process what becomes of it.
fn tell_once(error: &std::io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        log::warn!(
            "no thread can be made for I/O, so each operation on a disk stops its worker until it is done: {error} (raise the limit of \
             processes: ulimit -u, or TasksMax= of the systemd unit, or a container's limit of pids)"
        );
    });
}

fn spawn(desk: Arc<Desk>, notify: Arc<dyn Notify>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("blk-io".into()).spawn(move || {
        while let Some(job) = desk.next() {
            let result = job.run();
            let slot = job.slot;
            drop(job);
            desk.done(slot, result);
            notify.notify();
        }
    })
}

impl Job {
    /// Makes the call: bytes, or a negative errno.
    fn run(&self) -> i32 {
        loop {
            let result = self.once();
            if result >= 0 {
                return i32::try_from(result).unwrap_or(i32::MAX);
            }
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return -errno.unwrap_or(libc::EIO),
            }
        }
    }

    fn once(&self) -> isize {
        let fd = self.file.as_raw_fd();
        match self.call {
            Call::Discard(range) => ioctl(fd, BLKDISCARD, &range),
            Call::ZeroOut(range) => ioctl(fd, BLKZEROOUT, &range),
            // SAFETY: the invariant of this module: the vectors and their memory live until the call has returned.
            Call::Read(at) => unsafe { libc::preadv2(fd, at.first, at.count, at.offset, 0) },
            // SAFETY: likewise.
            Call::Write(at, flags) => unsafe { libc::pwritev2(fd, at.first, at.count, at.offset, flags) },
            // SAFETY: no memory of ours is involved.
            Call::Sync => unsafe { libc::fdatasync(fd) as isize },
            // SAFETY: likewise.
            Call::Allocate(mode, [start, len]) => unsafe {
                libc::fallocate(fd, mode, signed(start), signed(len)) as isize
            },
        }
    }
}

fn ioctl(fd: i32, request: libc::Ioctl, range: &[u64; 2]) -> isize {
    // SAFETY: both requests read two u64 from their argument, which is live, and touch no other memory of ours.
    unsafe { libc::ioctl(fd, request, range.as_ptr()) as isize }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    struct Nobody;

    impl Notify for Nobody {
        fn notify(&self) {}
    }

    /// Memory that is never freed, for calls that never end.
    fn memory() -> Vectors {
        let place = Box::leak(Box::new([0_u8; 8]));
        let vector = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
        Vectors { first: Box::leak(Box::new(vector)), count: 1, offset: -1 }
    }

    #[test]
    fn a_call_that_does_not_end_is_waited_for_with_patience_and_those_not_begun_are_cancelled() {
        let notify: Arc<dyn Notify> = Arc::new(Nobody);
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut helpers = Helpers::default();
        let jobs = THREADS_MAX as u64 + 8;
        for slot in 0..jobs {
            helpers.start(slot, read.as_raw_fd(), Call::Read(memory()), &notify).unwrap();
        }
        while helpers.desk.lock().running < THREADS_MAX {
            std::thread::yield_now();
        }
        let patience = Duration::from_millis(20);
        let start = Instant::now();
        assert!(!helpers.close(patience));
        assert!((patience..Duration::from_secs(10)).contains(&start.elapsed()));
        let mut finished = Vec::new();
        helpers.collect(&mut finished);
        let cancelled = (jobs - 8..jobs).map(|slot| (slot, -libc::ECANCELED));
        assert_eq!(finished, cancelled.collect::<Vec<_>>());
        drop(write);
        assert!(helpers.close(Duration::from_secs(10)), "at the end of the stream they end");
        helpers.collect(&mut finished);
        assert_eq!((finished.len() as u64, helpers.outstanding), (jobs, 0));
    }

    #[test]
    fn a_call_that_has_begun_is_waited_for_and_its_result_kept() {
        let notify: Arc<dyn Notify> = Arc::new(Nobody);
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut helpers = Helpers::default();
        helpers.start(1, read.as_raw_fd(), Call::Read(memory()), &notify).unwrap();
        while helpers.desk.lock().running == 0 {
            std::thread::yield_now();
        }
        let desk = helpers.desk.clone();
        let writer = std::thread::spawn(move || {
            while !desk.lock().closed {
                std::thread::yield_now();
            }
            rustix::io::write(&write, &[7; 8]).unwrap();
        });
        assert!(helpers.close(Duration::from_secs(10)));
        let mut finished = Vec::new();
        helpers.collect(&mut finished);
        assert_eq!(finished, [(1, 8)]);
        writer.join().unwrap();
    }

    #[test]
    fn files_of_a_turn_are_duplicated_once_and_given_up_after_it() {
        let notify: Arc<dyn Notify> = Arc::new(Nobody);
        let file = tempfile::tempfile().unwrap();
        let mut helpers = Helpers::default();
        (0..10).for_each(|slot| helpers.start(slot, file.as_raw_fd(), Call::Sync, &notify).unwrap());
        assert_eq!(helpers.files.len(), 1);
        helpers.end_turn();
        assert!(helpers.files.is_empty());
        assert!(helpers.close(Duration::from_secs(10)));
        assert_eq!(helpers.start(10, -1, Call::Sync, &notify), Err(libc::EBADF));
    }

    #[test]
    fn a_place_that_is_none_is_refused() {
        assert_eq!((signed(4096), signed(1 << 63), signed(u64::MAX)), (4096, i64::MIN, i64::MIN));
    }
}
