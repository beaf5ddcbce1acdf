//! A queue of a device: its ring mapped, its event channel bound, and both given to a port of a worker.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use blockwork_engine::{Completion, Context, PortId, Stats, VolumeId, Worker, WorkerHandle};
use blockwork_format::blkif::{Abi, PAGE_BYTES, QueueParameters};
use blockwork_memory::{Buffer, GrantDevice, MAPPINGS, Place, Segment, mappings_max};
use blockwork_uring::{EventPort, Uring, more};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::blkif::{
    Access, BackConfig, BackEnd, BackPort, BackRing, Ended, EventChannel, GrantError, GrantRef, Grants,
    Ledger, Mappings, SharedPages,
};

/// How long a server that was killed may still have the other end of an event channel, and how long to wait before it is tried
/// again.
const BIND_TIME: Duration = Duration::from_secs(10);
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// Mappings of all guests of this process together. Of those that Linux lets a process have (`vm.max_map_count`), half are for what stays
/// ([`mappings_max`]): pages that stay mapped behind their requests, up to three quarters of it, and memory that front ends of vhost-user share, which
/// cannot be served without, so that some is left to them. A quarter is for requests that are under way: where the limit is Linux' own, 32 rings of 16
/// pages can be half full. The rest is for rings and the process itself.
static ALL: LazyLock<Mappings> =
    LazyLock::new(|| Mappings::new(&MAPPINGS, mappings_max() / 4 * 3, mappings_max() / 2));

/// What all queues of a device have in common.
pub(super) struct Common {
    /// For people: the export.
    pub(super) name: String,
    pub(super) volume: VolumeId,
    /// The guest.
    pub(super) domain: u32,
    pub(super) abi: Abi,
    pub(super) persistent: bool,
    pub(super) max_indirect_segments: u32,
    pub(super) stats: Arc<Stats>,
    /// Written to when a queue has ended.
    pub(super) bell: Arc<OwnedFd>,
    /// The server is to end.
    pub(super) stopping: Arc<AtomicBool>,
    /// A server of before may have the event channels still, which has been killed just now.
    pub(super) awaits_another: bool,
}

/// Why a queue is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StartError {
    /// The server ends: nothing is wrong with the queue, which is the next server's.
    #[error("the server ends")]
    Ending,
    /// For people.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for StartError {
    fn from(reason: String) -> StartError {
        StartError::Failed(reason)
    }
}

/// A queue that is served.
pub(super) struct Queue {
    worker: WorkerHandle<Uring>,
    port: PortId,
    back: BackEnd,
    life: Arc<Life>,
    /// Requests that an earlier server has left, and that are done again.
    pub(super) left: u32,
}

/// Whether there is (or will be) a port.
struct Life {
    ended: Mutex<bool>,
    changed: Condvar,
    bell: Arc<OwnedFd>,
}

impl Life {
    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the port is gone.
    fn wait(&self) {
        drop(self.changed.wait_while(self.ended(), |ended| !*ended));
    }
}

/// The port's end of a [`Life`]: when it is dropped, the port is gone.
struct Presence(Arc<Life>);

impl Drop for Presence {
    fn drop(&mut self) {
        *self.0.ended() = true;
        self.0.changed.notify_all();
        // An eventfd that cannot be written to is full, and so readable.
        let _ = rustix::io::write(&*self.0.bell, &1_u64.to_ne_bytes());
    }
}

impl Queue {
    /// Has `worker` serve a queue. `resumes`: another server has served it, and left a ledger.
    ///
    /// # Errors
    /// What of it cannot be had, or that the server ends.
    pub(super) fn start(
        worker: &WorkerHandle<Uring>,
        common: &Arc<Common>,
        index: usize,
        parameters: &QueueParameters,
        ledger: Place,
        resumes: bool,
    ) -> Result<Queue, StartError> {
        let remote = parameters.event_channel;
        let is_ending = || common.stopping.load(Ordering::Acquire);
        let bind = || EventPort::bind(common.domain, remote);
        let bound = if common.awaits_another { once_it_is_free(bind, || !is_ending()) } else { bind() };
        let bell = bound.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput if is_ending() => StartError::Ending,
            _ => format!("queue {index}: event-channel {remote} cannot be bound to: {error}").into(),
        })?;
        let life =
            Arc::new(Life { ended: Mutex::new(false), changed: Condvar::new(), bell: common.bell.clone() });
        let channel = Channel { bell, name: common.name.clone(), _presence: Presence(life.clone()) };
        let (common, refs) = (common.clone(), parameters.ring_refs.clone());
        let made = ask(worker, move |worker| {
            Parts { common: &common, index, refs: &refs, ledger, resumes }.add(worker, channel)
        });
        let (port, back, left) = made??;
        Ok(Queue { worker: worker.clone(), port, back, life, left })
    }

    /// Asks it to end when what it has taken is answered.
    pub(super) fn close(&self) {
        self.back.close();
        let port = self.port;
        self.worker.run(move |worker| worker.poke(port));
    }

    /// Waits until it has ended.
    pub(super) fn join(self) {
        self.life.wait();
    }

    /// How the front end has broken the protocol, if it has.
    pub(super) fn broken(&self) -> Option<String> {
        breach(self.back.ended())
    }
}

/// How the front end of a queue has broken the protocol. One that has ended with its worker, since the server ends, is none to be refused
/// for that: what is left in its ring is the next server's, and Linux takes a disk that was closed for one that is gone.
fn breach(ended: Option<&Ended>) -> Option<String> {
    match ended {
        Some(Ended::Broken(how)) => Some(how.clone()),
        Some(Ended::Closed) | None => None,
    }
}

/// Has a worker do something, and waits for that.
fn ask<T: Send + 'static>(
    worker: &WorkerHandle<Uring>,
    act: impl FnOnce(&mut Worker<Uring>) -> T + Send + 'static,
) -> Result<T, StartError> {
    let (tell, told) = mpsc::channel();
    worker.run(move |worker| {
        // The thread waits for it, unless it has panicked.
        let _ = tell.send(act(worker));
    });
    told.recv().map_err(|_| StartError::Ending)
}

/// Binds to an event channel that a server which has just been killed may still have, as long as one `may_wait` for that.
fn once_it_is_free<T>(bind: impl Fn() -> io::Result<T>, may_wait: impl Fn() -> bool) -> io::Result<T> {
    let end = Instant::now() + BIND_TIME;
    loop {
        match bind() {
            Err(error)
                if error.kind() == io::ErrorKind::InvalidInput && Instant::now() < end && may_wait() =>
            {
                pause();
            }
            other => return other,
        }
    }
}

/// Between two tries.
#[allow(clippy::disallowed_methods, reason = "nobody tells when another process's event channels are closed")]
fn pause() {
    thread::sleep(BIND_PAUSE);
}

/// What a port is made of.
struct Parts<'a> {
    common: &'a Common,
    index: usize,
    refs: &'a [GrantRef],
    ledger: Place,
    resumes: bool,
}

impl Parts<'_> {
    fn add(self, worker: &mut Worker<Uring>, channel: Channel) -> Result<(PortId, BackEnd, u32), String> {
        let index = self.index;
        let (port, back, left) = self.port(channel).map_err(|reason| format!("queue {index}: {reason}"))?;
        Ok((worker.add_port(Box::new(port)), back, left))
    }

    fn port(self, channel: Channel) -> Result<(BackPort<Uring>, BackEnd, u32), String> {
        let Parts { common, index, refs, ledger, resumes } = self;
        let device = GrantDevice::open().map_err(|error| format!("/dev/xen/gntdev: {error}"))?;
        let mut grants = Mapped { device, domain: common.domain };
        let mut pages = Vec::new();
        grants.map(refs, Access::Write, &mut pages).map_err(|error| format!("its ring: {error}"))?;
        let pages = SharedPages::new(pages).map_err(|error| error.to_string())?;
        let mut ring = BackRing::new(pages, common.abi);
        let slots = ring.slots();
        let memory = Buffer::of_mapping(&ledger.mapping, ledger.offset, Ledger::bytes(slots));
        let ledger = if resumes {
            Ledger::resume(memory, common.abi, slots, ring.next_answer())
                .map_err(|error| error.to_string())?
        } else {
            Ledger::new(memory, slots)
        };
        let left = ledger.left();
        ring.resume(left).map_err(|error| error.to_string())?;
        let name = format!("{} queue {index}", common.name);
        let config = BackConfig {
            stats: common.stats.ring(&name, slots),
            name,
            volume: common.volume,
            persistent: common.persistent,
            max_indirect_segments: common.max_indirect_segments,
        };
        let (port, back) = BackPort::new(config, ring, Box::new(channel), Box::new(grants));
        Ok((port.within(&ALL).with_own_buffers().with_ledger(ledger), back, left))
    }
}

/// A guest's pages.
struct Mapped {
    device: Arc<GrantDevice>,
    domain: u32,
}

impl Grants for Mapped {
    fn map(&mut self, refs: &[GrantRef], access: Access, out: &mut Vec<Segment>) -> Result<(), GrantError> {
        let Some(&first) = refs.first() else { return Ok(()) };
        let pages = self.device.map(self.domain, refs, access == Access::Write).map_err(|error| {
            let which = if refs.len() > 1 {
                format!("or one of {} behind it", refs.len() - 1)
            } else {
                String::new()
            };
            GrantError {
                gref: first,
                reason: format!("{which} cannot be mapped {access}: {error}").trim().to_owned(),
                no_room: error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()),
            }
        })?;
        let page = |n| Segment::new(pages.clone(), n * PAGE_BYTES, PAGE_BYTES);
        out.extend((0..refs.len()).map(page));
        Ok(())
    }
}

/// An event channel to a guest.
struct Channel {
    bell: EventPort,
    name: String,
    _presence: Presence,
}

/// The channel's only operation.
const RUNG: u32 = 0;

impl Channel {
    fn watch(&self, cx: &mut Context<'_, Uring>) {
        let token = cx.token(RUNG);
        cx.env.watch(token, self.bell.fd().clone());
    }

    fn rearm(&self) {
        if let Err(error) = self.bell.rearm() {
            log::warn!("xen: {}: its event channel: {error}", self.name);
        }
    }
}

impl EventChannel<Uring> for Channel {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        self.watch(cx);
        // What came before there was anybody to hear of it; and what was answered before may not have been heard.
        self.notify(cx);
        cx.wake_me();
    }

    fn event(&mut self, cx: &mut Context<'_, Uring>, _local: u32, completion: Completion) {
        if completion.result < 0 {
            return; // cancelled by `close`
        }
        self.rearm();
        if !more(completion.flags) {
            self.watch(cx);
        }
    }

    fn notify(&mut self, _cx: &mut Context<'_, Uring>) {
        if let Err(error) = self.bell.notify() {
            log::debug!("xen: {}: the guest cannot be notified: {error}", self.name);
        }
    }

    fn close(&mut self, cx: &mut Context<'_, Uring>) {
        let token = cx.token(RUNG);
        cx.env.cancel(token);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use blockwork_engine::{Done, Port, PortState, WorkerConfig};
    use blockwork_uring::UringConfig;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_worker_that_has_ended_is_told_from_a_queue_that_cannot_be_served() {
        let env = Uring::new(&UringConfig::default()).unwrap();
        let stats = Stats::new(Vec::new());
        let mut worker = Worker::new(env, WorkerConfig::new(Arc::new([]), Arc::new([]), stats.worker()));
        let handle = worker.handle();
        let asked = handle.clone();
        let asking = thread::spawn(move || {
            let answer = ask(&asked, |_| 7);
            asked.stop();
            answer
        });
        assert_eq!(worker.run(), Ok(()));
        drop(worker);
        assert_eq!(asking.join().unwrap(), Ok(7));
        assert_eq!(ask(&handle, |_| 8), Err(StartError::Ending));
    }

    /// A port of a queue's, as far as who waits for its end sees it.
    struct Served(#[allow(dead_code, reason = "it tells when it is dropped")] Presence);

    impl Port<Uring> for Served {
        fn open(&mut self, _: &mut Context<'_, Uring>) {}
        fn event(&mut self, _: &mut Context<'_, Uring>, _: u32, _: Completion) {}
        fn done(&mut self, _: &mut Context<'_, Uring>, _: Done) {}
        fn turn(&mut self, _: &mut Context<'_, Uring>) -> PortState {
            PortState::Open
        }
        fn drain(&mut self, _: &mut Context<'_, Uring>) {}
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_panicked() {
        let (up, started) = mpsc::channel();
        let working = thread::spawn(move || {
            let env = Uring::new(&UringConfig::default()).unwrap();
            let stats = Stats::new(Vec::new());
            let mut worker = Worker::new(env, WorkerConfig::new(Arc::new([]), Arc::new([]), stats.worker()));
            up.send(worker.handle()).unwrap();
            worker.run()
        });
        let handle = started.recv().unwrap();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let life = Arc::new(Life { ended: Mutex::new(false), changed: Condvar::new(), bell });
        let presence = Presence(life.clone());
        ask(&handle, move |worker| worker.add_port(Box::new(Served(presence)))).unwrap();
        // Who asks for what panics, and who comes later.
        let asked = handle.clone();
        let asking = thread::spawn(move || ask(&asked, |_| -> u32 { panic!("as a test wants it") }));
        assert_eq!(asking.join().unwrap(), Err(StartError::Ending));
        assert!(working.join().is_err());
        assert_eq!(ask(&handle, |_| 8), Err(StartError::Ending));
        life.wait();
    }

    #[test]
    fn who_waits_for_an_event_channel_does_not_keep_the_server_from_ending() {
        let tries = Cell::new(0);
        let bind = || {
            tries.set(tries.get() + 1);
            Err::<(), _>(io::Error::from(io::ErrorKind::InvalidInput))
        };
        let error = once_it_is_free(bind, || tries.get() < 3).unwrap_err();
        assert_eq!((error.kind(), tries.get()), (io::ErrorKind::InvalidInput, 3));
        let free = || if tries.replace(tries.get() + 1) < 5 { bind() } else { Ok(()) };
        once_it_is_free(free, || true).unwrap();
        tries.set(0);
        let none = || {
            tries.set(tries.get() + 1);
            Err::<(), _>(io::Error::from(io::ErrorKind::NotFound))
        };
        assert!(once_it_is_free(none, || true).is_err() && tries.get() == 1);
    }

    #[test]
    fn a_queue_that_has_ended_with_its_worker_is_not_refused() {
        assert_eq!(breach(None), None);
        assert_eq!(breach(Some(&Ended::Closed)), None);
        assert_eq!(breach(Some(&Ended::Broken("how".into()))), Some("how".into()));
    }
}
