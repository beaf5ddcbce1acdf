//! A FUSE mount as a port of a worker: requests in, bios out, replies back.
//!
//! A turn reads requests with readv(2), submits what they ask for, and goes; each completed bio is answered by one
//! writev(2) as it is delivered. A poll, started at the end of the turn and submitted by the call that waits, wakes the worker
//! for what comes next, or at once if it is there already. So a turn does not have to read until there is nothing: one
//! that found a single request goes without asking for a second, unless second ones were found of late. A client that
//! waits for each answer costs three system calls a request: wait, read, reply.
//!
//! Invariants:
//! 1. Every request that takes an answer gets exactly one, also when it is malformed; a reply that the kernel does not want
//!    any more (ENOENT: the client was killed) is dropped.
//! 2. A write's data arrive page-aligned: the two headers of 40 bytes go to one place, what follows to another, so that
//!    the bio needs no bounce for O_DIRECT.
//! 3. At most [`IN_FLIGHT_MAX`] requests and [`BYTES_MAX`] bytes are taken at a time; the kernel holds the rest.
//! 4. No turn looks further for a SEEK_HOLE or SEEK_DATA than is said in `looks`, or reads more than [`BATCH`] requests:
//!    the rest follows in later turns, so that no client keeps the worker from the others.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use blockwork_engine::{
    Allocation, Bio, Completion, Context, Done, Env, Errno, Flags, Nanos, Op, Port, PortState, SECTOR,
    Sector, Sectors, VolumeId,
};
use blockwork_memory::{Buffer, Pool, Segment, Segments};
use blockwork_uring::{BackOff, Uring, read_now, write_now};
use slab::Slab;

use super::Loss;
use super::abi::{
    self, Attr, IN_HEADER, InHeader, InitReply, Malformed, OUT_HEADER, Reply, Request, WRITE_IN, falloc,
    fattr, init,
};
use super::pages::Pages;
use super::tree::{Files, Served, Tree};
use crate::complaints::Complaints;
use crate::looks::{LOOK_TIME, LOOKUPS_MAX};
use crate::offered::{ASK_AGAIN, NotOpened, Opened};

/// Requests taken from the kernel and not answered yet, at most.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Bytes of data that those may have, at most (one more request may go beyond).
pub const BYTES_MAX: usize = 128 << 20;
/// Largest READ and WRITE, in bytes.
const TRANSFER_MAX: usize = 1 << 20;
/// The same in pages.
const TRANSFER_PAGES: u16 = 256;
/// Background requests (asynchronous direct I/O, such as a loop device's) that the kernel sends at a time.
const MAX_BACKGROUND: u16 = 512;
/// Requests read in one turn; then what they ask for is submitted before more are read.
const BATCH: usize = 64;
/// Of so many turns that have found a request one asks for a second, at least, where that was in vain.
const LONE_TURNS_MAX: u32 = 32;
/// Memory from which the places for writes' data are cut, one after the other.
const ARENA: usize = 4 * TRANSFER_MAX;
/// Bytes of a READDIR reply at most.
const READDIR_MAX: usize = 16 << 10;
/// Arguments longer than this are cut: only names can be, and none that long exists.
const ARGUMENTS_MAX: usize = 4096;

/// The port's own operations: the poll of /dev/fuse.
const POLL: u32 = 0;
/// A timer that is due at once: go on after the worker has looked at everybody else.
const AGAIN: u32 = 1;
/// A timer: what was put off is tried again.
const OPEN: u32 = 2;

const EAGAIN: Errno = Errno(11);
const EINTR: Errno = Errno(4);
const ENOENT: Errno = Errno(2);
const ENXIO: Errno = Errno(6);
const ENODEV: Errno = Errno(19);
const EBADF: Errno = Errno(9);
const EBUSY: Errno = Errno(16);
const EISDIR: Errno = Errno(21);
const ENOTDIR: Errno = Errno(20);
const ENOSYS: Errno = Errno(38);
const EPROTO: Errno = Errno(71);
const ECONNABORTED: Errno = Errno(103);

/// Serves one mount.
pub struct FusePort {
    fd: Arc<OwnedFd>,
    tree: Tree,
    files: Files,
    /// What clients have open, by the handles that the kernel has.
    open: Slab<Opened<Served>>,
    inbox: Inbox,
    outbox: Outbox,
    in_flight: Slab<InFlight>,
    bytes: usize,
    seeks: VecDeque<Seek>,
    /// Opens of what cannot be opened just now: they are tried again when the timer [`OPEN`] has come, which is then under way.
    opens: VecDeque<Open>,
    /// What the kernel may keep of files.
    pages: Pages,
    /// Requests may be waiting in the kernel, and no poll is needed to hear of them.
    readable: bool,
    /// A poll is under way.
    polling: bool,
    /// Whether a turn that has found one request asks for a second: a client that waits for each answer has none.
    second: BackOff<LONE_TURNS_MAX>,
    /// Nothing more is done until the timer [`AGAIN`] has come.
    paused: bool,
    draining: bool,
    /// The mount is gone, or cannot be served.
    gone: bool,
    loss: Loss,
    /// About truncations: whoever may write a file may try as often as it likes.
    truncations: Complaints,
}

/// A request that has become a bio.
#[derive(Debug)]
struct InFlight {
    unique: u64,
    /// Bytes of data: what a read's reply has, and what a write's says.
    bytes: u32,
}

/// An LSEEK that is under way.
#[derive(Debug)]
struct Seek {
    unique: u64,
    volume: VolumeId,
    for_data: bool,
    /// Where the client asked from, in bytes.
    offset: u64,
    at: Sector,
    end: Sector,
}

/// An OPEN that was put off.
#[derive(Debug)]
struct Open {
    unique: u64,
    node: u64,
    flags: u32,
}

impl FusePort {
    pub(super) fn new(fd: Arc<OwnedFd>, tree: Tree, files: Files, loss: Loss) -> FusePort {
        FusePort {
            fd,
            tree,
            files,
            open: Slab::new(),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            in_flight: Slab::with_capacity(IN_FLIGHT_MAX),
            bytes: 0,
            seeks: VecDeque::new(),
            opens: VecDeque::new(),
            pages: Pages::default(),
            readable: true,
            polling: false,
            second: BackOff::default(),
            paused: false,
            draining: false,
            gone: false,
            loss,
            truncations: Complaints::default(),
        }
    }

    /// Has the worker woken for the next request, unless it is known that there may be one: what this turn could not take
    /// is taken when something else makes room, and would only wake it over and over.
    fn poll_if_needed(&mut self, cx: &mut Context<'_, Uring>) {
        if !self.polling && !self.readable && !self.draining && !self.gone {
            let token = cx.token(POLL);
            cx.env.poll(token, self.fd.clone(), true);
            self.polling = true;
        }
    }

    /// Does no more this turn, but goes on in the next: what was started so far reaches the disks, and other ports
    /// and the request to stop are heard, however fast this client is.
    fn pause(&mut self, cx: &mut Context<'_, Uring>) {
        if !self.paused {
            self.paused = true;
            let token = cx.token(AGAIN);
            cx.env.timeout(token, Nanos(0));
        }
    }

    /// The kernel says so, or there is no way to go on.
    fn is_gone(&mut self) {
        self.gone = true;
        if !self.draining {
            self.loss.tell();
        }
    }

    fn may_take(&self) -> bool {
        self.readable
            && !self.paused
            && !self.draining
            && !self.gone
            && self.in_flight.len() + self.seeks.len() + self.opens.len() < IN_FLIGHT_MAX
            && self.bytes < BYTES_MAX
    }

    /// Reads requests until there are none, or are not likely to be any, a batch is full, or enough are under way.
    fn take_requests(&mut self, cx: &mut Context<'_, Uring>) {
        let mut taken = 0;
        for _ in 0..BATCH {
            if !self.may_take() {
                return;
            }
            if taken == 1 && !self.second.is_due() {
                self.readable = false; // the poll will tell
                return;
            }
            let slot = self.inbox.slot(cx.pool());
            match read_now(self.fd.as_fd(), &[self.inbox.head.clone(), slot.clone()]) {
                Ok(len) => {
                    taken += 1;
                    if taken == 2 {
                        self.second.paid();
                    }
                    self.request(cx, len, slot);
                }
                Err(EAGAIN) => {
                    self.readable = false;
                    if taken == 1 {
                        self.second.in_vain();
                    }
                }
                // The client of the first request in the kernel's queue was killed: there may be others.
                Err(EINTR | ENOENT) => {}
                // Unmounted (ENODEV), or aborted by the administrator through fusectl.
                Err(ENODEV | ECONNABORTED) => self.is_gone(),
                Err(error) => {
                    log::warn!("/dev/fuse: cannot read a request: {error}; the mount is not served any more");
                    self.is_gone();
                }
            }
        }
        if self.may_take() {
            self.pause(cx);
        }
    }

    fn request(&mut self, cx: &mut Context<'_, Uring>, len: usize, slot: Segment) {
        let mut head = [0; IN_HEADER + WRITE_IN];
        self.inbox.head.read_at(0, &mut head);
        let in_head = len.min(head.len());
        let Ok(header) = InHeader::parse(&head[..in_head]) else {
            // Without a header there is nobody to answer.
            log::warn!("/dev/fuse gave a request of {len} bytes, expected at least {IN_HEADER}");
            return;
        };
        let payload = len - in_head;
        let mut long = Vec::new();
        let arguments = if payload == 0 || header.opcode == abi::opcode::WRITE {
            &head[IN_HEADER..in_head]
        } else {
            long.extend(&head[IN_HEADER..]);
            long.resize(WRITE_IN + payload.min(ARGUMENTS_MAX), 0);
            slot.read_at(0, &mut long[WRITE_IN..]);
            &long[..]
        };
        let parsed = Request::parse(header.opcode, arguments);
        if let Ok(Request::Write { .. }) = parsed {
            self.inbox.keep(payload);
        }
        if let Err(errno) = self.dispatch(cx, header, parsed, slot, payload) {
            self.outbox.error(&self.fd, header.unique, errno);
        }
    }

    /// Answers a request, or starts what it asks for. An error is the answer.
    fn dispatch(
        &mut self,
        cx: &mut Context<'_, Uring>,
        header: InHeader,
        request: Result<Request<'_>, Malformed>,
        slot: Segment,
        payload: usize,
    ) -> Result<(), Errno> {
        let InHeader { unique, node, .. } = header;
        self.tree.follow(&self.files);
        let request = request.map_err(|malformed| {
            log::warn!("{malformed}");
            EPROTO
        })?;
        match request {
            Request::Read { offset, size, how } => {
                if how & abi::READ_LOCKOWNER == 0 {
                    let (tree, volume) = (&self.tree, self.served(node)?.volume);
                    let exists = |node| tree.served(node).is_some();
                    self.pages.are_read(node, || cx.changes(volume), exists);
                }
                self.read(cx, unique, node, offset, size)
            }
            Request::Write { offset, size, flags } => {
                if usize::try_from(size) != Ok(payload) {
                    return Err(EPROTO);
                }
                self.write(cx, unique, node, offset, flags, slot.slice(0, payload))
            }
            Request::Fsync => self.flush(cx, unique, node),
            Request::Fallocate { offset, length, mode } => {
                self.fallocate(cx, unique, node, offset, length, mode)
            }
            Request::Lseek { offset, whence } => self.seek(unique, node, offset, whence),
            Request::Init { major, minor, max_readahead, flags } => {
                self.init(unique, major, minor, max_readahead, flags)
            }
            Request::Destroy => {
                self.is_gone();
                self.outbox.reply(&self.fd, unique, |_| ());
                Ok(())
            }
            Request::Open { flags } => self.open(cx, Open { unique, node, flags }),
            Request::Forget => Ok(()),
            // Its node may have gone.
            Request::Release { handle } => {
                let key = usize::try_from(handle).map_err(|_| EBADF)?;
                drop(self.open.try_remove(key));
                self.outbox.reply(&self.fd, unique, |_| ());
                Ok(())
            }
            other => self.about_names(cx, unique, node, other),
        }
    }

    /// What the tree alone can answer.
    fn about_names(
        &mut self,
        cx: &Context<'_, Uring>,
        unique: u64,
        node: u64,
        request: Request<'_>,
    ) -> Result<(), Errno> {
        let (fd, out, pages) = (&self.fd, &mut self.outbox, &mut self.pages);
        let attr = self.tree.attr(node).ok_or(ENOENT)?;
        let mut look = |attr: Attr| {
            let served = self.tree.served(attr.ino);
            let altered = served.and_then(|served| pages.look(attr.ino, || cx.changes(served.volume)));
            Attr { altered: altered.unwrap_or(attr.altered), ..attr }
        };
        match request {
            Request::Lookup { name } => {
                let child = std::str::from_utf8(name).ok().and_then(|name| self.tree.child(node, name));
                let attr = look(child.and_then(|child| self.tree.attr(child)).ok_or(ENOENT)?);
                out.reply(fd, unique, |reply| reply.entry(&attr));
            }
            Request::Getattr => {
                let attr = look(attr);
                out.reply(fd, unique, |reply| reply.attr(&attr));
            }
            Request::Setattr { valid, size } => {
                // Times are accepted and not kept: a disk has none.
                let resized = valid & fattr::SIZE != 0 && size != attr.size;
                if resized {
                    self.truncations.warn(blockwork_uring::clock(), || {
                        format!(
                            "FUSE: a client wants to make a file of {} bytes one of {size}: refused, as a volume's size is \
                             fixed (dd: add conv=notrunc)",
                            attr.size
                        )
                    });
                }
                if resized || valid & (fattr::MODE | fattr::UID | fattr::GID) != 0 {
                    return Err(Errno::EPERM);
                }
                let altered = pages.set(node).unwrap_or(attr.altered);
                out.reply(fd, unique, |reply| reply.attr(&Attr { altered, ..attr }));
            }
            Request::Opendir => out.reply(fd, unique, |reply| reply.open(0, 0)),
            Request::Readdir { offset, size } => {
                let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?.min(READDIR_MAX);
                let entries = self.tree.list(node, offset).ok_or(ENOTDIR)?;
                out.reply(fd, unique, |reply| {
                    for entry in entries {
                        if !reply.dirent(size, entry.offset, entry.node, entry.kind, entry.name.as_bytes()) {
                            break;
                        }
                    }
                });
            }
            Request::Statfs => {
                let bytes: u64 = self.tree.volumes().map(|served| served.sectors.bytes()).sum();
                let files = self.tree.volumes().count() as u64;
                out.reply(fd, unique, |reply| {
                    reply.statfs(bytes / u64::from(super::BLOCK), super::BLOCK, files)
                });
            }
            Request::Releasedir => out.reply(fd, unique, |_| ()),
            Request::ChangesNames => return Err(Errno::EPERM),
            // The kernel then never sends it again, and does without: of an interrupt, too, so that a request which was
            // submitted is always waited for.
            _ => return Err(ENOSYS),
        }
        Ok(())
    }

    fn init(
        &mut self,
        unique: u64,
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    ) -> Result<(), Errno> {
        if major < abi::MAJOR || (major == abi::MAJOR && minor < abi::MINOR_MIN) {
            log::warn!(
                "this kernel speaks FUSE {major}.{minor}, expected at least {}.{} (Linux 5.4)",
                abi::MAJOR,
                abi::MINOR_MIN
            );
            self.is_gone();
            return Err(EPROTO);
        }
        // Of a newer major version the kernel sees from the reply what we speak, and asks again.
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::AUTO_INVAL_DATA
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP;
        let reply = InitReply {
            minor: abi::MINOR.min(minor),
            max_readahead,
            flags: flags & wanted,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: u32::try_from(TRANSFER_MAX).expect("1 MiB"),
            max_pages: TRANSFER_PAGES,
        };
        self.outbox.reply(&self.fd, unique, |out| out.init(reply));
        Ok(())
    }

    /// Opens a file, now or later.
    fn open(&mut self, cx: &mut Context<'_, Uring>, asked: Open) -> Result<(), Errno> {
        self.tree.attr(asked.node).ok_or(ENOENT)?;
        let served = self.served(asked.node)?;
        if served.read_only && asked.flags & abi::O_ACCMODE != abi::O_RDONLY {
            return Err(Errno::EROFS);
        }
        let key = self.tree.key(asked.node);
        match self.files.open(|known, _| Some(known) == key) {
            Ok(opened) => {
                let handle = self.open.insert(opened) as u64;
                let flags = abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES | abi::FOPEN_NOFLUSH;
                self.outbox.reply(&self.fd, asked.unique, |reply| reply.open(handle, flags));
            }
            Err(NotOpened::NotNow) if !self.draining => {
                if self.opens.is_empty() {
                    let token = cx.token(OPEN);
                    cx.env.timeout(token, ASK_AGAIN);
                }
                self.opens.push_back(asked);
            }
            // Withheld, as a snapshot that is to take the place of its origin.
            Err(_) => return Err(EBUSY),
        }
        Ok(())
    }

    /// Tries once more what was put off.
    fn open_again(&mut self, cx: &mut Context<'_, Uring>) {
        self.tree.follow(&self.files);
        for asked in std::mem::take(&mut self.opens) {
            let unique = asked.unique;
            if let Err(errno) = self.open(cx, asked) {
                self.outbox.error(&self.fd, unique, errno);
            }
        }
    }

    fn served(&self, node: u64) -> Result<&Served, Errno> {
        self.tree.served(node).ok_or(EISDIR)
    }

    fn start(&mut self, unique: u64, bytes: u32) -> u64 {
        self.bytes += bytes as usize;
        self.in_flight.insert(InFlight { unique, bytes }) as u64
    }

    fn read(
        &mut self,
        cx: &mut Context<'_, Uring>,
        unique: u64,
        node: u64,
        offset: u64,
        size: u32,
    ) -> Result<(), Errno> {
        let served = self.served(node)?;
        let (volume, left) = (served.volume, served.sectors.bytes().saturating_sub(offset));
        let size = u32::try_from(u64::from(size).min(left).min(TRANSFER_MAX as u64)).expect("at most 1 MiB");
        if size == 0 {
            self.outbox.reply(&self.fd, unique, |_| ());
            return Ok(());
        }
        let len = size as usize;
        let data = Segments::from_iter([Segment::new(cx.pool().get(len), 0, len)]);
        let cookie = self.start(unique, size);
        submit(cx, volume, cookie, Op::Read, Flags::NONE, offset, u64::from(size), data);
        Ok(())
    }

    fn write(
        &mut self,
        cx: &mut Context<'_, Uring>,
        unique: u64,
        node: u64,
        offset: u64,
        open_flags: u32,
        data: Segment,
    ) -> Result<(), Errno> {
        let served = self.served(node)?;
        let (volume, left) = (served.volume, served.sectors.bytes().saturating_sub(offset));
        if served.read_only {
            return Err(Errno::EROFS);
        }
        let size = u32::try_from((data.len() as u64).min(left)).expect("at most 1 MiB");
        if size == 0 {
            // As a block device says at its end; a write that only begins before it is cut short.
            return Err(Errno::ENOSPC);
        }
        let flags = if open_flags & abi::O_DSYNC != 0 { Flags::FUA.with(Flags::SYNC) } else { Flags::NONE };
        let data = Segments::from_iter([data.slice(0, size as usize)]);
        let cookie = self.start(unique, size);
        submit(cx, volume, cookie, Op::Write, flags, offset, u64::from(size), data);
        Ok(())
    }

    fn flush(&mut self, cx: &mut Context<'_, Uring>, unique: u64, node: u64) -> Result<(), Errno> {
        let volume = self.served(node)?.volume;
        let cookie = self.start(unique, 0);
        cx.submit(volume, cookie, Bio::flush());
        Ok(())
    }

    fn fallocate(
        &mut self,
        cx: &mut Context<'_, Uring>,
        unique: u64,
        node: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<(), Errno> {
        let served = self.served(node)?;
        if served.read_only {
            return Err(Errno::EROFS);
        }
        let (volume, size) = (served.volume, served.sectors.bytes());
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        if end > size && mode & falloc::KEEP_SIZE == 0 {
            // It would have to grow.
            return Err(Errno::EOPNOTSUPP);
        }
        const PUNCH: u32 = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
        let flags = match mode {
            // Whoever punches a hole wants space back; where the disk cannot do that, zeros written in its stead
            // would take time and wear and free nothing, so it is told.
            PUNCH => Flags::FAST_ONLY,
            _ if mode & !falloc::KEEP_SIZE == falloc::ZERO_RANGE => Flags::NO_UNMAP,
            // A volume has all its space already; beyond its end there is none.
            0 | falloc::KEEP_SIZE if end <= size => {
                self.outbox.reply(&self.fd, unique, |_| ());
                return Ok(());
            }
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let end = end.min(size);
        if offset >= end {
            self.outbox.reply(&self.fd, unique, |_| ());
            return Ok(());
        }
        let cookie = self.start(unique, 0);
        submit(cx, volume, cookie, Op::WriteZeroes, flags, offset, end - offset, Segments::new());
        Ok(())
    }

    fn seek(&mut self, unique: u64, node: u64, offset: u64, whence: u32) -> Result<(), Errno> {
        let for_data = match whence {
            abi::SEEK_DATA => true,
            abi::SEEK_HOLE => false,
            _ => return Err(Errno::EINVAL),
        };
        let served = self.served(node)?;
        let (volume, sectors) = (served.volume, served.sectors);
        if offset >= sectors.bytes() {
            return Err(ENXIO);
        }
        let at = Sector(offset / SECTOR);
        let end = Sector(sectors.0);
        self.seeks.push_back(Seek { unique, volume, for_data, offset, at, end });
        Ok(())
    }

    /// Looks at the next extents for the LSEEK whose turn it is.
    fn go_on_seeking(&mut self, cx: &mut Context<'_, Uring>) {
        let Some(mut seek) = self.seeks.pop_front() else { return };
        match seek.step(cx) {
            Some(Ok(offset)) => self.outbox.reply(&self.fd, seek.unique, |reply| reply.offset(offset)),
            Some(Err(errno)) => self.outbox.error(&self.fd, seek.unique, errno),
            None => self.seeks.push_back(seek),
        }
        if !self.seeks.is_empty() {
            self.pause(cx);
        }
    }
}

impl Seek {
    /// The answer, or none if there are more extents to look at.
    fn step(&mut self, cx: &mut Context<'_, Uring>) -> Option<Result<u64, Errno>> {
        let start = cx.env.processor_time();
        for _ in 0..LOOKUPS_MAX {
            if self.at >= self.end {
                // At the end of every file there is a hole.
                return Some(if self.for_data { Err(ENXIO) } else { Ok(self.end.bytes()) });
            }
            let (what, nr) = match cx.allocation(self.volume, self.at, self.end.since(self.at)) {
                Ok(extent) => extent,
                Err(errno) => return Some(Err(errno)),
            };
            if (what == Allocation::Data) == self.for_data {
                return Some(Ok(self.at.bytes().max(self.offset)));
            }
            self.at = self.at + Sectors(nr.0.max(1));
            if cx.env.processor_time().since(start) >= LOOK_TIME {
                break;
            }
        }
        None
    }
}

/// Submits a range that lies within the volume, by the fast path if it is whole blocks.
#[allow(clippy::too_many_arguments)]
fn submit(
    cx: &mut Context<'_, Uring>,
    volume: VolumeId,
    cookie: u64,
    op: Op,
    flags: Flags,
    offset: u64,
    len: u64,
    data: Segments,
) {
    let block = u64::from(cx.volume(volume).limits().logical_block_size);
    if offset.is_multiple_of(block) && len.is_multiple_of(block) {
        let bio =
            Bio { op, flags, sector: Sector(offset / SECTOR), nr: Sectors::from_bytes_floor(len), data };
        cx.submit(volume, cookie, bio);
    } else {
        cx.submit_bytes(volume, cookie, op, flags, offset, len, data);
    }
}

impl Port<Uring> for FusePort {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        cx.wake_me(); // INIT may be waiting already
    }

    fn event(&mut self, cx: &mut Context<'_, Uring>, local: u32, _completion: Completion) {
        match local {
            AGAIN => self.paused = false,
            OPEN => self.open_again(cx),
            _ => {
                // Whatever poll said, the next read will say it clearly.
                self.readable = true;
                self.polling = false;
            }
        }
    }

    fn done(&mut self, _cx: &mut Context<'_, Uring>, done: Done) {
        let key = usize::try_from(done.cookie).expect("a cookie is a key of the slab");
        let InFlight { unique, bytes } = self.in_flight.remove(key);
        self.bytes -= bytes as usize;
        match (done.result, done.op) {
            (Err(errno), _) => self.outbox.error(&self.fd, unique, errno),
            (Ok(()), Op::Read) => self.outbox.data(&self.fd, unique, bytes, done.data),
            (Ok(()), Op::Write) => self.outbox.reply(&self.fd, unique, |reply| reply.written(bytes)),
            (Ok(()), _) => self.outbox.reply(&self.fd, unique, |_| ()),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        if !self.paused {
            // Both get their share of every turn, or a long seek would keep reads and writes waiting, or they it.
            self.take_requests(cx);
            self.go_on_seeking(cx);
        }
        if self.draining && !self.opens.is_empty() {
            self.open_again(cx); // for the last time
        }
        if (self.gone || self.draining) && self.in_flight.is_empty() && self.seeks.is_empty() {
            if self.polling {
                let token = cx.token(POLL);
                cx.env.cancel(token);
            }
            return PortState::Closed;
        }
        self.poll_if_needed(cx);
        PortState::Open
    }

    fn drain(&mut self, _cx: &mut Context<'_, Uring>) {
        self.draining = true;
    }
}

/// Where requests are read to.
struct Inbox {
    /// `fuse_in_header` and up to 40 bytes of arguments.
    head: Segment,
    arena: Buffer,
    used: usize,
}

impl Inbox {
    fn new() -> Inbox {
        let head = Segment::new(Buffer::new(IN_HEADER + WRITE_IN), 0, IN_HEADER + WRITE_IN);
        Inbox { head, arena: Buffer::new(ARENA), used: 0 }
    }

    /// Page-aligned memory for the largest write. Writes that were kept lie before it, and keep the arena alive.
    fn slot(&mut self, pool: &Pool) -> Segment {
        if self.used > 0 && self.arena.is_unique() {
            self.used = 0; // all of them are done: use the memory that is warm
        }
        if self.used + TRANSFER_MAX > self.arena.len() {
            self.arena = pool.get(ARENA);
            self.used = 0;
        }
        Segment::new(self.arena.clone(), self.used, TRANSFER_MAX)
    }

    /// The last slot's first `len` bytes are in use now.
    fn keep(&mut self, len: usize) {
        self.used += len.next_multiple_of(blockwork_memory::PAGE);
    }
}

/// Sends replies, one writev(2) each: FUSE has no way to send several at once.
struct Outbox {
    /// Where replies without data are laid out before they go.
    page: Segment,
    bytes: Vec<u8>,
}

impl Outbox {
    fn new() -> Outbox {
        let len = OUT_HEADER + READDIR_MAX;
        Outbox { page: Segment::new(Buffer::new(len), 0, len), bytes: Vec::new() }
    }

    fn send(fd: &OwnedFd, data: &[Segment]) {
        match write_now(fd.as_fd(), data) {
            // ENOENT: nobody waits any more. ENODEV: the mount is gone, as the next read will say.
            Ok(_) | Err(ENOENT | ENODEV | ECONNABORTED | EINTR) => {}
            Err(error) => log::warn!("/dev/fuse: a reply was refused: {error}"),
        }
    }

    fn reply(&mut self, fd: &OwnedFd, unique: u64, build: impl FnOnce(&mut Reply<'_>)) {
        let mut reply = Reply::new(&mut self.bytes, unique);
        build(&mut reply);
        let bytes = reply.finish();
        self.page.write_at(0, bytes);
        let len = bytes.len();
        Outbox::send(fd, &[self.page.slice(0, len)]);
    }

    fn error(&mut self, fd: &OwnedFd, unique: u64, errno: Errno) {
        self.page.write_at(0, &abi::out_header(unique, errno.0, 0));
        Outbox::send(fd, &[self.page.slice(0, OUT_HEADER)]);
    }

    fn data(&mut self, fd: &OwnedFd, unique: u64, bytes: u32, data: Segments) {
        self.page.write_at(0, &abi::out_header(unique, 0, bytes));
        let mut all = Segments::from_iter([self.page.slice(0, OUT_HEADER)]);
        all.extend(data);
        Outbox::send(fd, &all);
    }
}
