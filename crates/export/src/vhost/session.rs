//! What a front end asks for, message by message, in a thread of its own: rare things, that may wait for a queue to come to rest.
//!
//! Invariants:
//! 1. A queue runs while it has a ring, memory, a kick, the log of written pages if one is due ([`Session::awaits_log`]), and is enabled;
//!    whatever alters one of these stops it first, which waits for its requests, and starts it again where it was.
//! 2. A message that cannot be obeyed is refused, if the front end waits for an answer; otherwise it is the end of the session.
//!    Either is logged with what was wrong, as far as `complaints` lets it.
//! 3. When the session ends, so do its queues, before those of another one start.
//! 4. Its queues run while it has the turn ([`turn`](super::turn)): it is taken with the first, and ends with the last.
//! 5. A front end that begins anew on the same connection (a second SET_OWNER) finds of what it said before no more than of another front end's
//!    ([`Session::own`]).
//! 6. A guest that moves is answered that its last queue rests when the disk was let go of, if that is to be (`service`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use blockwork_format::vhost_user::{
    CONFIG_CHANGE, CONFIG_PART_MAX, ConfigPart, FEATURE_LOG_ALL, FEATURE_PROTOCOL, Header, InflightArea,
    LogArea, Message, Region, VringAddr, VringFile, VringState, inflight, protocol,
};
use blockwork_format::virtio::{RING_SIZE_MAX, blk, feature};
use blockwork_memory::{GUEST_REGIONS_MAX, GuestLayout, GuestRegion, Place};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::caretaker::Caretaker;
use super::control::{Command, QueueHandle};
use super::device::ENDS;
use super::dirty::{DirtyLog, LogMemory};
use super::given::{Closer, Given};
use super::huge;
use super::mapped::{map, place};
use super::marks::Marks;
use super::queue::{LogParts, QueueParts, RingParts};
use super::refusal::{Refusal, check_features, check_log};
use super::ring::{PACKED_BASE, Ring, RingPlace};
use super::service::{Service, Wish};
use super::socket::{self, SocketError};
use super::turn::{Taken, Turn, Waiting};

/// How often the volume's size is looked at: an array that grows tells nobody.
const SIZE_LOOK: Duration = Duration::from_secs(1);

/// How often it is looked whether another front end still has the disk, or it is still away: at first, as a guest that has moved is about to get it
/// then, and at last. Who moves a guest stops it there before it starts it here; who does not has two guests write to one disk.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(20);

/// What is sent back.
enum Answer {
    /// Nothing, or zero where the front end waits.
    Done,
    Payload(Vec<u8>),
    File(Vec<u8>, OwnedFd),
}

/// Memory for the marks of requests in flight.
struct InflightMemory {
    at: Place,
    area: InflightArea,
}

#[derive(Default)]
struct Queue {
    size: u32,
    address: Option<VringAddr>,
    /// Where to go on. None: nobody has said, and it has not run.
    base: Option<u32>,
    /// Where it was when the device was reset, until it is said where to begin, or has run since: QEMU before 8.0.1 resets a device
    /// that it stops, and asks only then. What it is told goes to the guest's next host, or into its snapshot.
    left_at: Option<u32>,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    enabled: bool,
    running: Option<QueueHandle>,
}

/// One front end.
pub(super) struct Session<'a> {
    service: &'a Service,
    socket: Arc<OwnedFd>,
    closer: Closer,
    /// The front end has said that it begins.
    has_owner: bool,
    /// What the driver has agreed to.
    features: u64,
    /// What the front end has.
    protocol: u64,
    regions: Vec<GuestRegion>,
    layout: GuestLayout,
    /// Who sees to that memory.
    caretaker: Option<Caretaker>,
    queues: Vec<Queue>,
    inflight: Option<InflightMemory>,
    /// Where written pages are marked, while F_LOG_ALL is set.
    log: Option<LogMemory>,
    /// Where the front end hears from us.
    backend: Option<Given>,
    /// The size that the front end knows of, sectors. None: a queue was begun where one of before has ended, so the driver knows what it was told by
    /// a front end before this one, or by another server, and did not ask again.
    announced: Option<u64>,
    /// The pieces that a request may have, by the configuration that the front end has asked for.
    pieces_told: Option<u32>,
    /// As the driver has set it.
    status: u64,
    turn: Turn<'a>,
    /// A queue would run if another front end's did not, or the disk were here.
    waits: bool,
    /// How long until that is looked at again: the longer, the longer it has lasted.
    look: Duration,
    /// That the first of these was told of.
    has_waited: bool,
    /// It is another one that is waited for.
    waiting: Option<Waiting<'a>>,
    /// It is the disk that is waited for.
    wish: Option<Wish<'a>>,
    /// It was told of queues that have no memory.
    has_missed_memory: bool,
}

impl<'a> Session<'a> {
    /// Of the front end at `socket`; what it gives is the closer's to close.
    pub(super) fn new(service: &'a Service, socket: Arc<OwnedFd>, closer: Closer) -> Session<'a> {
        let queues = usize::from(service.device.queues());
        Session {
            service,
            socket,
            closer,
            has_owner: false,
            features: 0,
            protocol: 0,
            regions: Vec::new(),
            layout: GuestLayout::default(),
            caretaker: None,
            queues: std::iter::repeat_with(Queue::default).take(queues).collect(),
            inflight: None,
            log: None,
            backend: None,
            announced: Some(service.device.sectors()),
            pieces_told: None,
            status: 0,
            turn: service.turns.join(),
            waits: false,
            look: FIRST_LOOK,
            has_waited: false,
            waiting: None,
            wish: None,
            has_missed_memory: false,
        }
    }

    /// Serves it until it goes.
    pub(super) fn run(&mut self) -> Result<(), SocketError> {
        let socket = self.socket.clone();
        loop {
            let time = if self.waits { self.look } else { SIZE_LOOK };
            let has_come = socket::wait(socket.as_fd(), time)?;
            self.start_those_that_wait();
            // Also of a front end that never rests.
            self.announce_size();
            if !has_come {
                self.look_for_memory();
                self.give_up_the_channel();
                continue;
            }
            let (header, message, files) = match socket::receive(socket.as_fd(), &self.closer) {
                Err(SocketError::Gone) => return Ok(()),
                other => other?,
            };
            let name = format!("{message:?}");
            let asks_where_it_was = matches!(message, Message::GetVringBase(_));
            let is_about_config = matches!(message, Message::GetConfig(_));
            log::debug!("{}: {name}", self.service.name);
            let obeyed = self.obey(message, files);
            self.leave_the_disk(asks_where_it_was);
            match obeyed {
                Ok(answer) => self.reply(&header, answer)?,
                Err(refusal) => {
                    self.service.refusals.warn(blockwork_uring::clock(), || {
                        format!("{}: the front end's {name} is refused: {refusal}", self.service.name)
                    });
                    let bytes = if is_about_config {
                        header.reply(&[]) // as the protocol has it, whether or not the front end waits for all
                    } else if header.needs_reply() {
                        header.reply(&1_u64.to_ne_bytes())
                    } else {
                        return Ok(());
                    };
                    socket::send(socket.as_fd(), &bytes, None)?;
                }
            }
        }
    }

    /// Says so where a front end has set queues going, and rests without having shared memory. QEMU says nothing of that itself, and its guest waits for
    /// ever. Since 7.2 it may happen to one that did share it, with the server of before: where its device was not running when that one ended,
    /// it does not hear that there is another, and goes by what it has told the first.
    fn look_for_memory(&mut self) {
        let goes = |queue: &Queue| queue.kick.is_some() && queue.address.is_some() && queue.enabled;
        if self.has_missed_memory || !self.layout.regions().is_empty() || !self.queues.iter().any(goes) {
            return;
        }
        self.has_missed_memory = true;
        self.service.without_memory.warn(blockwork_uring::clock(), || {
            format!(
                "{}: the front end shares no memory of its guest, whose requests wait for that; the guest needs memory that can be \
                 shared (QEMU: -object memory-backend-memfd,id=ID,size=SIZE,share=on -machine memory-backend=ID); if it has, and was \
                 stopped or without a driver when the last server ended: QEMU since 7.2 may share no more then, start it anew",
                self.service.name
            )
        });
    }

    /// Where another one waits for the disk, and this one says nothing. What it gave as the channel to hear from us may be its own end of this connection,
    /// or hold that, unread: the connection would have no end then, however long the front end has been gone. One that has not gone hears no more of
    /// its disk's size; a guest that moves has left its disk before it is wanted by the next front end.
    fn give_up_the_channel(&mut self) {
        if self.turn.is_waited_for() {
            self.backend = None;
        }
    }

    fn reply(&self, header: &Header, answer: Answer) -> Result<(), SocketError> {
        let socket = self.socket.as_fd();
        match answer {
            Answer::Done if header.needs_reply() => {
                socket::send(socket, &header.reply(&0_u64.to_ne_bytes()), None)
            }
            Answer::Done => Ok(()),
            Answer::Payload(payload) => socket::send(socket, &header.reply(&payload), None),
            Answer::File(payload, file) => socket::send(socket, &header.reply(&payload), Some(&file)),
        }
    }

    /// Tells the front end that the configuration has changed, if the volume has another size than it knows of, or may have.
    fn announce_size(&mut self) {
        let now = self.service.device.sectors();
        if self.announced == Some(now) {
            return;
        }
        let has_config = self.protocol & protocol::CONFIG != 0;
        let Some(backend) = self.backend.as_ref().filter(|_| has_config) else { return };
        self.announced = Some(now);
        let header = Header { request: CONFIG_CHANGE, flags: 1, size: 0 };
        // Whoever waited for a front end that does not listen there would not hear that the server is to end.
        let Service { name, sizes, .. } = self.service;
        match socket::send_now(backend.as_fd(), &header.encode()) {
            Ok(()) => sizes.inform(blockwork_uring::clock(), || {
                format!("{name}: the front end is told that the volume has {now} sectors")
            }),
            // Nor is there anybody to be told.
            Err(SocketError::Gone) => self.backend = None,
            Err(error) => {
                sizes.warn(blockwork_uring::clock(), || {
                    format!("{name}: cannot tell the front end of its disk's size: {error}")
                });
                // Half a message may have gone.
                self.backend = None;
            }
        }
    }

    fn obey(&mut self, message: Message, files: Vec<Given>) -> Result<Answer, Refusal> {
        let number = |n: u64| Ok(Answer::Payload(n.to_ne_bytes().to_vec()));
        let mut files = files.into_iter();
        match message {
            Message::GetFeatures => return number(self.service.device.features()),
            Message::GetProtocolFeatures => return number(self.service.device.protocol_features()),
            Message::GetQueueNum => return number(self.service.device.queues().into()),
            Message::GetMaxMemSlots => return number(GUEST_REGIONS_MAX as u64),
            Message::GetStatus => return number(self.status),
            Message::GetConfig(part) => return self.get_config(&part),
            Message::GetInflightFd(area) => return self.get_inflight(area),
            Message::GetVringBase(VringState { index, .. }) => return self.get_base(index),
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetProtocolFeatures(features) => {
                let offered = self.service.device.protocol_features();
                check_features("features of the protocol", features, offered)?;
                self.protocol = features;
            }
            Message::SetOwner => self.own(),
            // Not used any more: it was to disable all rings, and whoever sends it need not say again where they are.
            Message::ResetOwner => {
                self.with_queues_at_rest(|session| {
                    session.queues.iter_mut().for_each(|queue| queue.enabled = false)
                });
            }
            Message::ResetDevice => self.reset(),
            Message::SetStatus(status) => {
                self.status = status;
                if status == 0 {
                    self.reset();
                }
            }
            Message::SetMemTable(table) => self.set_memory(&table, files)?,
            Message::AddMemReg(region) => self.add_memory(region, files)?,
            Message::RemMemReg(region) => self.remove_memory(region)?,
            Message::SetVringNum(VringState { index, num }) => self.set_size(index, num)?,
            Message::SetVringAddr(address) => {
                self.change(address.index, |queue| queue.address = Some(address))?
            }
            Message::SetVringBase(VringState { index, num }) => {
                self.change(index, |queue| (queue.base, queue.left_at) = (Some(num), None))?
            }
            Message::SetVringEnable(VringState { index, num }) => {
                self.change(index, |queue| queue.enabled = num != 0)?;
            }
            Message::SetVringKick(file) => self.set_kick(file, files.next())?,
            Message::SetVringCall(VringFile { index, .. }) => {
                let call = files
                    .next()
                    .map(|file| eventfd("the descriptor to call a driver by", file))
                    .transpose()?;
                let queue = self.queue(index)?;
                queue.call.clone_from(&call);
                if let Some(running) = &queue.running {
                    running.tell(Command::Call(call));
                }
            }
            Message::SetVringErr(VringFile { index, .. }) => {
                let error = files
                    .next()
                    .map(|file| eventfd("the descriptor to tell of errors by", file))
                    .transpose()?;
                let queue = self.queue(index)?;
                queue.error.clone_from(&error);
                if let Some(running) = &queue.running {
                    running.tell(Command::Error(error));
                }
            }
            Message::SetBackendReqFd => self.backend = files.next(),
            Message::SetConfig(part) => {
                let what = "the place of a change to the configuration";
                let expected = "none: a driver chooses nothing there (see `device`)".into();
                return Err(Refusal::Number { what, found: part.offset.into(), expected });
            }
            Message::SetInflightFd(area) => self.set_inflight(area, files)?,
            Message::SetLogBase(area) => {
                self.set_log(area, files)?;
                return number(0); // answered, whether or not the front end waits for all
            }
            // Nobody is called about the log: it is read when it is wanted.
            Message::SetLogFd => {}
            Message::Unknown(found) => {
                return Err(Refusal::Unknown(format!("message {found}, expected one of those known here")));
            }
        }
        Ok(Answer::Done)
    }

    /// A front end begins. Where one has begun on this connection before, that one has gone: QEMU keeps a chardev connected from the device that is
    /// unplugged to the next, which knows nothing of what the last one has shared, and would share other memory at the same addresses. Then its rings are
    /// stopped, if they still run, and all is forgotten as at the end of a session, but for the two things that are agreed on before: QEMU tells of the
    /// protocol's features and of the channel to hear from us first. No front end says twice for one device that it begins.
    fn own(&mut self) {
        if !std::mem::replace(&mut self.has_owner, true) {
            return;
        }
        let mut next = Session::new(self.service, self.socket.clone(), self.closer.clone());
        (next.has_owner, next.protocol, next.backend) = (true, self.protocol, self.backend.take());
        *self = next;
        self.service.leave_the_disk();
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue, Refusal> {
        let queues = self.queues.len();
        let refusal = Refusal::NoQueue { found: index, queues };
        usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index)).ok_or(refusal)
    }

    /// Alters a queue, which rests meanwhile.
    fn change(&mut self, index: u32, act: impl FnOnce(&mut Queue)) -> Result<(), Refusal> {
        self.queue(index)?.rest();
        act(self.queue(index)?);
        self.start(index);
        Ok(())
    }

    /// Starts a queue, if it has all it needs.
    fn start(&mut self, index: u32) {
        let always_enabled = self.features & FEATURE_PROTOCOL == 0;
        let has_memory = !self.layout.regions().is_empty();
        let queue = &self.queues[index as usize];
        let (Some(kick), Some(address), true) = (&queue.kick, queue.address, has_memory) else { return };
        if queue.size == 0 || queue.running.is_some() || !(queue.enabled || always_enabled) {
            return;
        }
        if self.awaits_log() {
            self.service.refusals.inform(blockwork_uring::clock(), || {
                format!(
                    "{}: queue {index} waits for the log of written pages (SET_LOG_BASE), as the front end has set LOG_ALL",
                    self.service.name
                )
            });
            return;
        }
        match self.turn.take() {
            Taken::Ours => (self.look, self.wish, self.waiting) = (FIRST_LOOK, None, None),
            Taken::Others => return self.wait_for_another(),
            Taken::Away => return self.wait_for_the_disk(),
        }
        // Whoever takes it away waits for the turn first.
        let Some(backing) = self.service.backing() else { return };
        let base = queue.base.unwrap_or(self.beginning());
        let place = RingPlace {
            size: queue.size,
            is_packed: self.is_packed(),
            event_idx: self.features & feature::EVENT_IDX != 0,
            address,
        };
        let service = self.service;
        let worker = (service.first_worker + index as usize) % backing.workers.len();
        let stats = backing.stats.ring(&format!("{} queue {index}", service.name), queue.size);
        let parts = |presence| QueueParts {
            index,
            name: service.name.clone(),
            volume: backing.volume,
            layout: self.layout.clone(),
            ring: self.ring(index, place, base),
            log: self.log_parts(place),
            locked: service.pinned.as_ref().map(|pinned| pinned.locked.clone()),
            kick: kick.clone(),
            call: queue.call.clone(),
            error: queue.error.clone(),
            has_flush: self.features & blk::feature::FLUSH != 0,
            is_resumable: self.inflight.is_some(),
            id: service.device.id(),
            complaints: service.broken.clone(),
            stats,
            presence,
        };
        let running = QueueHandle::start(&backing.workers[worker], parts);
        if self.pieces_told.is_none() && ![0, PACKED_BASE].contains(&base) {
            self.announced = None;
        }
        self.queues[index as usize].running = Some(running);
        self.look_at_length(index);
    }

    fn wait_for_another(&mut self) {
        (self.waits, self.wish) = (true, None);
        self.waiting.get_or_insert_with(|| self.turn.wait());
        if !std::mem::replace(&mut self.has_waited, true) {
            self.service.waits.warn(blockwork_uring::clock(), || {
                format!(
                    "{}: the guest of another front end still uses the disk; this one waits until that stops",
                    self.service.name
                )
            });
        }
    }

    fn wait_for_the_disk(&mut self) {
        (self.waits, self.waiting) = (true, None);
        self.wish.get_or_insert_with(|| self.service.want_the_disk());
    }

    /// QEMU asks for the configuration before it tells of rings, and its guest sees what was answered then. A driver without indirect tables may so
    /// make a request that never fits into its ring; Linux waits for the room. Not so firmware, whose requests have one piece: SeaBIOS agrees to SEG_MAX, but
    /// to no FLUSH, OVMF the other way round.
    fn look_at_length(&self, index: u32) {
        let size = self.queues[index as usize].size;
        let Some(told) = self.pieces_told.filter(|told| told + ENDS > size) else { return };
        let goes_by_it = blk::feature::SEG_MAX | blk::feature::FLUSH;
        if self.features & (feature::INDIRECT_DESC | goes_by_it) != goes_by_it {
            return;
        }
        self.service.short_rings.warn(blockwork_uring::clock(), || {
            format!(
                "{}: the driver of queue {index} makes no indirect descriptors, and its ring of {size} is too short for the {told} \
                 pieces that a request may have, as the front end was told before it told of that ring: the guest may wait for \
                 ever; give the device indirect_desc=on, or queue-size={} at least",
                self.service.name,
                (told + ENDS).next_power_of_two()
            )
        });
    }

    fn is_packed(&self) -> bool {
        self.features & feature::RING_PACKED != 0
    }

    /// Where a ring begins that nothing was taken from, and of which nobody has said where to.
    fn beginning(&self) -> u32 {
        if self.is_packed() { PACKED_BASE } else { 0 }
    }

    /// Whether what is written is to be marked, and the log for that is still to come: QEMU before 7.2 sets rings going first, where the server was
    /// started anew while the guest moves. What were written until then would be old on its next host. Who cannot share a log gets none,
    /// and moves no guest.
    fn awaits_log(&self) -> bool {
        let may_share = self.protocol & protocol::LOG_SHMFD != 0;
        may_share && self.features & FEATURE_LOG_ALL != 0 && self.log.is_none()
    }

    /// Starts what could not, where the disk is free now.
    fn start_those_that_wait(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.look = (self.look * 2).min(LOOK);
            (0..self.service.device.queues().into()).for_each(|index| self.start(index));
            if !self.waits {
                (self.wish, self.waiting) = (None, None);
            }
        }
    }

    /// Lets others have the disk, if no queue runs; also those on another host, where the guest is about to go on there. Whoever moves a guest marks what
    /// is written until it stops, and asks for the places of its queues then.
    fn leave_the_disk(&self, asks_where_it_was: bool) {
        if self.queues.iter().any(|queue| queue.running.is_some()) {
            return;
        }
        self.turn.end();
        if asks_where_it_was && self.features & FEATURE_LOG_ALL != 0 {
            self.service.leave_the_disk();
        }
    }

    fn ring(&self, index: u32, place: RingPlace, base: u32) -> RingParts {
        let marks = self.inflight.as_ref().filter(|memory| index < memory.area.queues.into()).map(|memory| {
            let Place { mapping, offset } = memory.at.clone();
            let queue_size = memory.area.queue_size;
            // Within the area, as was checked when it came.
            let offset = offset + index as usize * inflight::queue_bytes(queue_size, place.is_packed);
            (Place { mapping, offset }, queue_size)
        });
        // To look through them takes milliseconds, and each ring has its own: not on the worker, whose other guests would wait for all of them.
        let recover = |(at, size): (Place, u16)| {
            Ring::recover(&self.layout, &place, base, Marks::new(&at, size, place.is_packed)?)
        };
        let recovered = marks.map(recover).transpose();
        Box::new(move |layout| Ring::new(layout, &place, base, recovered?))
    }

    fn log_parts(&self, place: RingPlace) -> Option<LogParts> {
        let memory = self.log.clone().filter(|_| self.features & FEATURE_LOG_ALL != 0)?;
        Some(Box::new(move |layout| DirtyLog::new(&memory, layout, &place)))
    }

    fn set_log(&mut self, area: LogArea, mut files: impl Iterator<Item = Given>) -> Result<(), Refusal> {
        check_log(area.size, &self.layout)?;
        let len = usize::try_from(area.size).expect("less than what can be mapped");
        let file = files.next().expect("as many files as the message has");
        let at = place("the log of written pages", &file, area.offset, area.size)?;
        let log = LogMemory { at, len };
        self.with_queues_at_rest(|session| session.log = Some(log));
        Ok(())
    }

    /// Changes what all queues are made of.
    fn with_queues_at_rest(&mut self, change: impl FnOnce(&mut Self)) {
        self.queues.iter_mut().for_each(Queue::rest);
        change(self);
        (0..self.service.device.queues().into()).for_each(|index| self.start(index));
    }

    fn change_memory(&mut self, regions: Vec<GuestRegion>) -> Result<(), Refusal> {
        let layout = GuestLayout::new(regions.clone())?;
        if let Some(log) = &self.log {
            check_log(log.len as u64, &layout)?;
        }
        self.caretaker = None;
        self.with_queues_at_rest(|session| (session.regions, session.layout) = (regions, layout));
        if !self.layout.regions().is_empty() {
            let (layout, Service { name, huge_pages, pinned, .. }) = (&self.layout, self.service);
            self.caretaker = match (huge_pages, pinned) {
                (Some(complaints), _) => huge::gather(name, layout, complaints),
                (_, Some(pinned)) => pinned.bring(name, layout),
                (None, None) => None,
            };
        }
        Ok(())
    }

    fn set_memory(&mut self, table: &[Region], files: impl Iterator<Item = Given>) -> Result<(), Refusal> {
        let regions = table.iter().zip(files).map(|(region, file)| map(region, &file));
        let regions = regions.collect::<Result<_, _>>()?;
        self.change_memory(regions)
    }

    fn add_memory(&mut self, region: Region, files: impl Iterator<Item = Given>) -> Result<(), Refusal> {
        let mut regions = self.regions.clone();
        for file in files.take(1) {
            regions.push(map(&region, &file)?);
        }
        self.change_memory(regions)
    }

    fn remove_memory(&mut self, region: Region) -> Result<(), Refusal> {
        let mut regions = self.regions.clone();
        let is_it = |known: &GuestRegion| {
            (known.guest, known.user, known.len) == (region.guest, region.user, region.size)
        };
        let place = regions.iter().position(is_it).ok_or_else(|| Refusal::Number {
            what: "the guest address of memory to remove",
            found: region.guest,
            expected: "a region that was added".into(),
        })?;
        regions.remove(place);
        self.change_memory(regions)
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        check_features("features", features, self.service.device.features_ever())?;
        self.with_queues_at_rest(|session| {
            session.features = features;
            // A log of before does not bind the guest's memory of after: a front end shares the next one before it sets this again.
            if features & FEATURE_LOG_ALL == 0 {
                session.log = None;
            }
        });
        Ok(())
    }

    fn set_size(&mut self, index: u32, num: u32) -> Result<(), Refusal> {
        if num == 0 || num > RING_SIZE_MAX.into() {
            let expected = format!("1 to {RING_SIZE_MAX}");
            return Err(Refusal::Number { what: "the size of a ring", found: num.into(), expected });
        }
        self.change(index, |queue| queue.size = num)
    }

    fn set_kick(&mut self, at: VringFile, file: Option<Given>) -> Result<(), Refusal> {
        let Some(file) = file else {
            return Err(Refusal::Unknown("a ring without a kick: it is not polled for ever".into()));
        };
        let kick = eventfd("the descriptor of a driver's calls", file)?;
        self.change(at.index, |queue| queue.kick = Some(kick))
    }

    fn get_base(&mut self, index: u32) -> Result<Answer, Refusal> {
        let beginning = self.beginning();
        let queue = self.queue(index)?;
        queue.rest();
        queue.kick = None;
        let base = queue.place().unwrap_or(beginning);
        let payload = [index.to_ne_bytes(), base.to_ne_bytes()].concat();
        Ok(Answer::Payload(payload))
    }

    fn reset(&mut self) {
        self.queues.iter_mut().for_each(Queue::rest);
        for queue in &mut self.queues {
            *queue = Queue {
                call: queue.call.take(),
                error: queue.error.take(),
                left_at: queue.place(),
                ..Queue::default()
            };
        }
        (self.inflight, self.log) = (None, None);
    }

    fn get_config(&mut self, part: &ConfigPart) -> Result<Answer, Refusal> {
        let mut all = [0; CONFIG_PART_MAX];
        let smallest = self.queues.iter().map(|queue| queue.size).filter(|&size| size > 0).min();
        let config = self.service.device.config(smallest);
        (self.announced, self.pieces_told) = (Some(config.capacity), Some(config.seg_max));
        let config = config.encode();
        all[..config.len()].copy_from_slice(&config);
        let start = usize::try_from(part.offset).unwrap_or(usize::MAX);
        let bytes = start.checked_add(part.bytes.len()).and_then(|end| all.get(start..end));
        let bytes = bytes.ok_or_else(|| Refusal::Number {
            what: "the end of a part of the configuration",
            found: u64::from(part.offset) + part.bytes.len() as u64,
            expected: format!("at most {CONFIG_PART_MAX}"),
        })?;
        let answer = ConfigPart { bytes: bytes.to_vec(), ..*part };
        Ok(Answer::Payload(answer.encode()))
    }

    /// Bytes that the marks of so many queues need.
    fn inflight_bytes(&self, area: &InflightArea) -> Result<u64, Refusal> {
        let most = self.service.device.queues();
        if area.queues == 0 || area.queues > most {
            let expected = format!("1 to {most}");
            let found = area.queues.into();
            return Err(Refusal::Number { what: "the number of queues", found, expected });
        }
        if area.queue_size == 0 || area.queue_size > RING_SIZE_MAX {
            let expected = format!("1 to {RING_SIZE_MAX}");
            let found = area.queue_size.into();
            return Err(Refusal::Number { what: "the size of a queue", found, expected });
        }
        Ok(u64::from(area.queues) * inflight::queue_bytes(area.queue_size, self.is_packed()) as u64)
    }

    fn get_inflight(&mut self, asked: InflightArea) -> Result<Answer, Refusal> {
        let size = self.inflight_bytes(&asked)?;
        let io = |what| move |source| Refusal::Io { what, source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("blockwork-inflight", flags).map_err(io("memfd_create"))?;
        ftruncate(&file, size).map_err(io("ftruncate"))?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io("sealing a memfd"))?;
        let area = InflightArea { size, offset: 0, ..asked };
        Ok(Answer::File(area.encode(), file))
    }

    fn set_inflight(
        &mut self,
        area: InflightArea,
        mut files: impl Iterator<Item = Given>,
    ) -> Result<(), Refusal> {
        let needed = self.inflight_bytes(&area)?;
        if needed > area.size || !area.offset.is_multiple_of(8) {
            let expected = format!("at least {needed}, at an offset that is a multiple of 8");
            let found = area.size;
            return Err(Refusal::Number {
                what: "the size of the marks of requests in flight",
                found,
                expected,
            });
        }
        let file = files.next().expect("as many files as the message has");
        let at = place("marks of requests in flight", &file, area.offset, needed)?;
        self.with_queues_at_rest(|session| session.inflight = Some(InflightMemory { at, area }));
        Ok(())
    }
}

impl Queue {
    /// Stops it, if it runs, and notes where to go on.
    fn rest(&mut self) {
        if let Some(running) = self.running.take()
            && let Some(base) = running.stop()
        {
            (self.base, self.left_at) = (Some(base), None);
        }
    }

    /// Where the front end is told that it is.
    fn place(&self) -> Option<u32> {
        self.left_at.or(self.base)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // All at once, then one after the other waited for.
        for running in self.queues.iter().filter_map(|queue| queue.running.as_ref()) {
            running.tell(Command::Stop);
        }
        self.queues.iter_mut().for_each(Queue::rest);
        // What is closed after this may take its time.
        self.turn.end();
    }
}

/// An eventfd of the front end's.
fn eventfd(what: &'static str, file: Given) -> Result<Arc<OwnedFd>, Refusal> {
    file.into_eventfd().map(Arc::new).map_err(|found| Refusal::NoEventfd { what, found })
}
