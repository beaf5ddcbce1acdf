//! A disk as a guest has it: requests by several queues, and a server that may come and go.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blockwork_format::vhost_user::{
    ConfigPart, FEATURE_LOG_ALL, FEATURE_PROTOCOL, InflightArea, Message, VringAddr, VringFile, VringState,
    protocol,
};
use blockwork_format::virtio::blk::{self, CONFIG_BYTES, Config, RequestHeader};
use blockwork_format::virtio::feature;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::client::{Client, wait_for_config_change};
use crate::guest::{Area, Guest, Layout};
use crate::ring::{Chain, Piece, Ring};
use crate::write_log::WriteLog;

/// What kind of disk, and how it is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues.
    pub queues: u16,
    /// Descriptors of each.
    pub ring_size: u16,
    /// Requests of each queue at most; each has memory of its own.
    pub requests: u16,
    /// Largest data of a request, bytes.
    pub data_bytes: usize,
    /// Packed rings.
    pub packed: bool,
    /// Indirect tables.
    pub indirect: bool,
    /// Each side says when it wants to be called.
    pub event_idx: bool,
    /// Data in so many pieces.
    pub pieces: usize,
    /// The last piece of a request's data lies first in memory: none continues another, as with pages of a guest.
    pub scattered: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: 1,
            ring_size: 128,
            requests: 32,
            data_bytes: 4096,
            packed: false,
            indirect: true,
            event_idx: true,
            pieces: 1,
            scattered: false,
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// See [`blk::request`].
    pub kind: u32,
    /// Where.
    pub sector: u64,
    /// Bytes of data.
    pub len: usize,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its number.
    pub id: u16,
    /// See [`blk::status`].
    pub status: u8,
    /// Bytes that the device says it has written.
    pub written: u32,
}

/// The memory of a request.
#[derive(Clone, Copy, Debug)]
struct Slot {
    header: Area,
    table: Area,
    data: Area,
    status: Area,
}

/// A queue.
pub struct Queue {
    ring: Ring,
    ring_size: u16,
    slots: Vec<Slot>,
    /// Numbers of requests that may be made.
    free: Vec<u16>,
    /// Pieces of the request at hand.
    scratch: Vec<Piece>,
    kick: OwnedFd,
    call: OwnedFd,
    indirect: bool,
    pieces: usize,
    scattered: bool,
    /// How often the device was called.
    pub kicks: u64,
}

/// A disk.
pub struct Disk {
    path: PathBuf,
    options: Options,
    /// The guest's memory.
    pub guest: Guest,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// The connection; none while the server is gone.
    pub client: Option<Client>,
    /// What was agreed upon.
    pub features: u64,
    inflight: Option<(InflightArea, OwnedFd)>,
    log: Option<WriteLog>,
    backend: Option<OwnedFd>,
}

impl Disk {
    /// Connects, and sets everything up.
    ///
    /// # Errors
    /// There is no server, or it does not do as it should.
    pub fn new(path: &Path, options: Options) -> Result<Disk> {
        let mut disk = Disk::without_server(options)?;
        path.clone_into(&mut disk.path);
        disk.connect()?;
        Ok(disk)
    }

    /// Memory and rings that no server has been told of.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors.
    pub fn without_server(options: Options) -> Result<Disk> {
        let mut layout = Layout::default();
        let queues = (0..options.queues).map(|_| Queue::new(&mut layout, &options)).collect::<Result<_>>()?;
        let guest = Guest::new(layout.len().next_multiple_of(4096))?;
        Ok(Disk {
            path: PathBuf::new(),
            options,
            guest,
            queues,
            client: None,
            features: 0,
            inflight: None,
            log: None,
            backend: None,
        })
    }

    /// Connects (once more), with the memory and the marks of requests in flight as they are.
    ///
    /// # Errors
    /// See [`Disk::new`].
    pub fn connect(&mut self) -> Result<()> {
        let bases: Vec<u32> = self.queues.iter().map(|queue| queue.ring.base(&self.guest.memory)).collect();
        self.connect_at(&bases)
    }

    fn connect_at(&mut self, bases: &[u32]) -> Result<()> {
        let mut client = Client::connect(&self.path)?;
        let known = self.agree(&mut client)?;
        if known & protocol::INFLIGHT_SHMFD != 0 {
            self.share_inflight(&client)?;
        }
        client.tell(&Message::SetMemTable(vec![self.guest.region()]), &[self.guest.file.as_fd()])?;
        self.set_up(client, bases)
    }

    /// Goes on by the connection of another device, which has been unplugged: QEMU keeps it for the next one, and shares memory region by region. No
    /// memory is shared for the marks of requests in flight.
    ///
    /// # Errors
    /// The server does not begin anew.
    pub fn replace(&mut self, mut client: Client) -> Result<()> {
        self.agree(&mut client)?;
        client.tell(&Message::AddMemReg(self.guest.region()), &[self.guest.file.as_fd()])?;
        let bases: Vec<u32> = self.queues.iter().map(|queue| queue.ring.base(&self.guest.memory)).collect();
        self.set_up(client, &bases)
    }

    /// Agrees on features, as QEMU does; those of the protocol that the server knows.
    fn agree(&mut self, client: &mut Client) -> Result<u64> {
        let offered = client.number(&Message::GetFeatures)?;
        ensure!(offered & FEATURE_PROTOCOL != 0, "no features of the protocol");
        let known = client.number(&Message::GetProtocolFeatures)?;
        let wanted = protocol::MQ
            | protocol::CONFIG
            | protocol::LOG_SHMFD
            | protocol::REPLY_ACK
            | protocol::INFLIGHT_SHMFD
            | protocol::BACKEND_REQ
            | protocol::CONFIGURE_MEM_SLOTS;
        client.tell(&Message::SetProtocolFeatures(known & wanted), &[])?;
        if known & protocol::REPLY_ACK != 0 {
            client.acknowledged();
        }
        if known & protocol::BACKEND_REQ != 0 {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().context("socketpair")?;
            client.tell(&Message::SetBackendReqFd, &[theirs.as_fd()])?;
            self.backend = Some(ours.into());
        }
        client.tell(&Message::SetOwner, &[])?;
        self.features = self.wanted_features() & offered;
        client.tell(&Message::SetFeatures(self.features), &[])?;
        Ok(known)
    }

    fn set_up(&mut self, client: Client, bases: &[u32]) -> Result<()> {
        for ((index, queue), base) in (0..).zip(&self.queues).zip(bases) {
            queue.set_up(&client, index, *base)?;
        }
        self.client = Some(client);
        Ok(())
    }

    /// Goes on with another server, as a guest that moves to another virtual machine monitor. Gives the connection to the one of before.
    ///
    /// # Errors
    /// See [`Disk::new`].
    pub fn move_to(&mut self, path: &Path) -> Result<Option<Client>> {
        let bases = self.stop_as_it_moves()?;
        self.go_on_at(path, &bases)
    }

    /// Has another server go on with the queues, which are there. Gives the connection to the one of before.
    ///
    /// # Errors
    /// See [`Disk::new`].
    pub fn go_on_at(&mut self, path: &Path, bases: &[u32]) -> Result<Option<Client>> {
        path.clone_into(&mut self.path);
        (self.inflight, self.log) = (None, None);
        let before = self.client.take();
        self.connect_at(bases)?;
        Ok(before)
    }

    /// Has the server stop the queues, as QEMU does at the end of a migration, up to when it marks what is written to memory; where they are.
    ///
    /// # Errors
    /// It does not.
    pub fn stop_as_it_moves(&mut self) -> Result<Vec<u32>> {
        self.log_writes(true)?;
        let queues = 0..u32::from(self.options.queues);
        for index in queues.clone() {
            self.client()?.tell(&Message::SetVringEnable(VringState { index, num: 0 }), &[])?;
        }
        let base = |index| {
            let (payload, _) = self.client()?.ask(&Message::GetVringBase(VringState { index, num: 0 }))?;
            let base = payload.get(4..8).context("a short answer")?;
            Ok(u32::from_ne_bytes(base.try_into()?))
        };
        queues.map(base).collect()
    }

    fn wanted_features(&self) -> u64 {
        let flag = |wanted: bool, feature: u64| if wanted { feature } else { 0 };
        feature::VERSION_1
            | FEATURE_PROTOCOL
            | blk::feature::FLUSH
            | blk::feature::DISCARD
            | blk::feature::WRITE_ZEROES
            | blk::feature::RO
            | blk::feature::MQ
            | flag(self.options.packed, feature::RING_PACKED)
            | flag(self.options.indirect, feature::INDIRECT_DESC)
            | flag(self.options.event_idx, feature::EVENT_IDX)
    }

    fn share_inflight(&mut self, client: &Client) -> Result<()> {
        if self.inflight.is_none() {
            let (queues, queue_size) = (self.options.queues, self.options.ring_size);
            let asked = InflightArea { size: 0, offset: 0, queues, queue_size };
            let (payload, file) = client.ask(&Message::GetInflightFd(asked))?;
            let size = u64::from_ne_bytes(payload[..8].try_into()?);
            let area = InflightArea { size, ..asked };
            self.inflight = Some((area, file.context("no file for requests in flight")?));
        }
        let (area, file) = self.inflight.as_ref().expect("just set");
        client.tell(&Message::SetInflightFd(*area), &[file.as_fd()])
    }

    /// Has the device mark the pages that it writes from now on, or not any more.
    ///
    /// # Errors
    /// It cannot, or will not.
    pub fn log_writes(&mut self, wanted: bool) -> Result<()> {
        if self.log.is_none() {
            self.log = Some(WriteLog::new(&self.guest)?);
        }
        let log = self.log.as_ref().expect("just set");
        if wanted {
            self.client()?.tell(&Message::SetLogBase(log.area()), &[log.file()])?;
        }
        let flag = if wanted { FEATURE_LOG_ALL } else { 0 };
        self.client()?.tell(&Message::SetFeatures(self.features | flag), &[])
    }

    /// The pages that the device says it has written since this was asked last, by their offset in the guest's memory.
    pub fn written_pages(&self) -> BTreeSet<usize> {
        self.log.as_ref().map_or_else(BTreeSet::new, WriteLog::take)
    }

    /// The connection.
    ///
    /// # Errors
    /// There is none.
    pub fn client(&self) -> Result<&Client> {
        self.client.as_ref().context("not connected")
    }

    /// The device's configuration.
    ///
    /// # Errors
    /// It does not say.
    pub fn config(&self) -> Result<Config> {
        let part = ConfigPart { offset: 0, flags: 0, bytes: vec![0; CONFIG_BYTES] };
        let (payload, _) = self.client()?.ask(&Message::GetConfig(part))?;
        let bytes =
            payload.get(12..).and_then(|bytes| bytes.try_into().ok()).context("a short configuration")?;
        Ok(Config::decode(bytes))
    }

    /// Waits until the back end says that the configuration has changed.
    ///
    /// # Errors
    /// It says something else, or has gone.
    pub fn wait_for_config_change(&self) -> Result<()> {
        wait_for_config_change(self.backend.as_ref().context("no channel")?.as_fd())
    }

    /// Starts a request; its number, or none if there is no room.
    pub fn start(&mut self, queue: usize, request: Request) -> Option<u16> {
        let queue = &mut self.queues[queue];
        let id = queue.prepare(&self.guest, request)?;
        queue.publish(&self.guest);
        Some(id)
    }

    /// Has all rings say that the device wants no call, as it leaves them if it dies while it is busy.
    pub fn hush(&self) {
        self.queues.iter().for_each(|queue| queue.ring.hush(&self.guest.memory));
    }

    /// The data of a request.
    pub fn read_data(&self, queue: usize, id: u16, into: &mut [u8]) {
        self.guest.memory.read_at(self.queues[queue].data(id).offset, into);
    }

    /// Sets the data of the request that will have this number.
    pub fn write_data(&self, queue: usize, id: u16, from: &[u8]) {
        self.guest.memory.write_at(self.queues[queue].data(id).offset, from);
    }

    /// The next request that is done, if any.
    pub fn finished(&mut self, queue: usize) -> Option<Finished> {
        self.queues[queue].finished(&self.guest)
    }

    /// Waits for the next request that is done.
    ///
    /// # Errors
    /// None is within this time.
    pub fn wait(&mut self, queue: usize, time: Duration) -> Result<Finished> {
        self.queues[queue].wait(&self.guest, time)
    }

    /// Sleeps until the device calls about any queue, at most this long; whether it did.
    pub fn sleep(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        let calls = self.queues.iter().map(|queue| &queue.call);
        let mut polled: Vec<_> = calls.map(|call| PollFd::new(call, PollFlags::IN)).collect();
        let called = poll(&mut polled, Some(&time)).is_ok_and(|ready| ready > 0);
        for queue in self.queues.iter().filter(|_| called) {
            let _ = rustix::io::read(&queue.call, &mut [0; 8]);
        }
        called
    }

    /// One request, from start to end.
    ///
    /// # Errors
    /// It does not end.
    pub fn run(&mut self, queue: usize, request: Request) -> Result<Finished> {
        let id = self.start(queue, request).context("no room")?;
        let finished = self.wait(queue, Duration::from_secs(20))?;
        ensure!(finished.id == id, "{finished:?}, expected {id}");
        Ok(finished)
    }
}

impl Queue {
    fn new(layout: &mut Layout, options: &Options) -> Result<Queue> {
        let ring = Ring::new(layout, options.ring_size, options.packed, options.event_idx);
        let table_bytes = 16 * (options.pieces + 2);
        let slots: Vec<Slot> = (0..options.requests)
            .map(|_| Slot {
                header: layout.take(16, 64),
                status: layout.take(1, 1),
                table: layout.take(table_bytes, 64),
                data: layout.take(options.data_bytes, 4096),
            })
            .collect();
        Ok(Queue {
            ring,
            ring_size: options.ring_size,
            slots,
            free: (0..options.requests).rev().collect(),
            scratch: Vec::new(),
            kick: eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?,
            indirect: options.indirect,
            pieces: options.pieces,
            scattered: options.scattered,
            kicks: 0,
        })
    }

    fn set_up(&self, client: &Client, index: u32, base: u32) -> Result<()> {
        let state = |num: u32| VringState { index, num };
        let file = VringFile { index, has_file: true };
        client.tell(&Message::SetVringNum(state(self.ring_size.into())), &[])?;
        client.tell(&Message::SetVringBase(state(base)), &[])?;
        client.tell(&Message::SetVringAddr(self.ring.address(index)), &[])?;
        client.tell(&Message::SetVringCall(file), &[self.call.as_fd()])?;
        client.tell(&Message::SetVringKick(file), &[self.kick.as_fd()])?;
        client.tell(&Message::SetVringEnable(state(1)), &[])
    }

    /// The number that the next request will have.
    pub fn next_id(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Where its ring is, as queue `index`.
    pub fn address(&self, index: u32) -> VringAddr {
        self.ring.address(index)
    }

    /// Descriptors of its ring.
    pub(crate) fn ring_size(&self) -> u16 {
        self.ring_size
    }

    /// By what it kicks, and is called.
    ///
    /// # Errors
    /// This process has as many descriptors as it may.
    pub fn bells(&self) -> Result<(OwnedFd, OwnedFd)> {
        Ok((self.kick.try_clone()?, self.call.try_clone()?))
    }

    /// Where the status of a request is.
    pub fn status(&self, id: u16) -> Area {
        self.slots[usize::from(id)].status
    }

    /// The memory of a request's data.
    pub fn data(&self, id: u16) -> Area {
        self.slots[usize::from(id)].data
    }

    /// Puts a request into the ring, where the device sees it when [`Queue::publish`] is called.
    pub fn prepare(&mut self, guest: &Guest, request: Request) -> Option<u16> {
        let id = self.next_id()?;
        let slot = self.slots[usize::from(id)];
        let header = RequestHeader { kind: request.kind, sector: request.sector };
        guest.memory.write_at(slot.header.offset, &header.encode());
        guest.memory.write_at(slot.status.offset, &[0xff]);
        let writes = matches!(request.kind, blk::request::IN | blk::request::GET_ID);
        let mut pieces = std::mem::take(&mut self.scratch);
        pieces.clear();
        let piece = |at: u64, len: usize, writes| Piece {
            address: at,
            len: u32::try_from(len).expect("a short piece"),
            writes,
        };
        pieces.push(piece(slot.header.guest(), 16, false));
        if request.len > 0 {
            let size = request.len.div_ceil(self.pieces);
            for at in (0..request.len).step_by(size) {
                pieces.push(piece(slot.data.guest() + at as u64, size.min(request.len - at), writes));
            }
            if self.scattered {
                pieces[1..].reverse();
            }
        }
        pieces.push(piece(slot.status.guest(), 1, true));
        let table = self.indirect.then_some(slot.table);
        let added = self.ring.add(&guest.memory, &Chain { id, pieces: &pieces, table });
        self.scratch = pieces;
        if !added {
            return None;
        }
        self.free.pop();
        Some(id)
    }

    /// Lets the device see what was put into the ring, and calls it if it wants that.
    pub fn publish(&mut self, guest: &Guest) {
        if self.ring.publish(&guest.memory) {
            self.kick();
        }
    }

    /// Calls the device.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // A blocking eventfd is never full here.
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).expect("an eventfd takes eight bytes");
    }

    /// The next request that is done, if any.
    pub fn finished(&mut self, guest: &Guest) -> Option<Finished> {
        let (id, written) = self.ring.used(&guest.memory)?;
        let mut status = [0];
        guest.memory.read_at(self.slots[usize::from(id)].status.offset, &mut status);
        self.free.push(id);
        Some(Finished { id, status: status[0], written })
    }

    /// Says whether the device shall call; if so, whether something is done already.
    pub fn want_calls(&mut self, guest: &Guest, wanted: bool) -> bool {
        self.ring.want_calls(&guest.memory, wanted)
    }

    /// Sleeps until the device calls, at most this long; whether it did.
    pub fn sleep(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        let mut polled = [PollFd::new(&self.call, PollFlags::IN)];
        let called = poll(&mut polled, Some(&time)).is_ok_and(|ready| ready > 0);
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
        called
    }

    /// Waits for the next request that is done.
    ///
    /// # Errors
    /// None is within this time.
    pub fn wait(&mut self, guest: &Guest, time: Duration) -> Result<Finished> {
        loop {
            if let Some(finished) = self.finished(guest) {
                return Ok(finished);
            }
            if self.want_calls(guest, true) {
                continue;
            }
            ensure!(self.sleep(time), "nothing was done in {time:?}");
        }
    }
}
