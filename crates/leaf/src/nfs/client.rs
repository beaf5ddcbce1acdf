//! A worker's handle on a file: requests become calls, answers end them.

use std::collections::VecDeque;
use std::sync::MutexGuard;

use blockwork_engine::{Completion, Ended, Env, Errno, Flags, Leaf, LeafIo, Nanos, Op, Submitted, Token};
use blockwork_format::nfs3::{ReadReply, Refusal, Stable, Status, Verifier, WriteReply};
use blockwork_memory::{Pool, Segment, Segments, copy_between, slice_segments};

use super::call::{Call, Calls, Kind, Outcome, Read, Reader, Taker, Write, Writer};
use super::commit::{Cause, Commit};
use super::connection::{Connection, Happening, local, parts};
use super::gather::Waiting;
use super::incoming::Broken;
use super::ledger::{Landing, Ledger, Piece};
use super::patience::Patience;
use super::trust::{Check, Size, Trust};
use super::{Shared, remedy};

/// Unused memory that is kept for the next call, bytes.
const POOL_BYTES: usize = 4 << 20;
const SECTOR_BYTES: u32 = 512;
/// How much more than the least may be under way, as multiples of a READ, on a connection that is chosen for company. nfs-ganesha on two
/// processors writes a twentieth more in 64 KiB pieces, 16 under way, than with none.
pub(super) const COMPANY: u32 = 4;
/// A server that does less than a sector each time it is asked is not asked for ever.
const STUCK_MAX: u32 = 16;
/// What comes of a call on a soft mount that is not answered in its time.
pub(super) const SILENCE: Errno = Errno(libc::ETIMEDOUT);

pub(super) struct NfsLeaf {
    pub(super) shared: std::sync::Arc<Shared>,
    /// Any token of this leaf, once there was one.
    pub(super) token: Token,
    pub(super) calls: Calls,
    pub(super) waiting: Waiting,
    pub(super) connections: Vec<Connection>,
    pool: Pool,
    pub(super) commit: Option<Commit>,
    pub(super) patience: Patience,
    /// Whether an alarm is set.
    alarmed: bool,
    /// Whether it is time soon to look for other workers' writes.
    pub(super) looks_for_others: bool,
    /// The server does not answer, and it was said.
    silent: bool,
    complaints: Vec<Status>,
}

impl NfsLeaf {
    pub(super) fn new(shared: std::sync::Arc<Shared>) -> NfsLeaf {
        let connections = (0..usize::from(shared.connections)).map(Connection::new).collect();
        NfsLeaf {
            shared,
            token: Token(0),
            calls: Calls::new(),
            waiting: Waiting::default(),
            connections,
            pool: Pool::new(POOL_BYTES),
            commit: None,
            patience: Patience::default(),
            alarmed: false,
            looks_for_others: false,
            silent: false,
            complaints: Vec::new(),
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock().expect("no holder of this lock panics")
    }

    pub(super) fn trust(&self) -> MutexGuard<'_, Trust> {
        self.shared.trust.lock().expect("no holder of this lock panics")
    }

    /// Asks; the message goes out when the batch ends.
    pub(super) fn ask(&mut self, env: &mut dyn Env, kind: Kind) {
        let now = env.now();
        self.ask_since(env, kind, now);
    }

    pub(super) fn ask_since(&mut self, env: &mut dyn Env, kind: Kind, since: Nanos) {
        match kind {
            Kind::Writes(writes) if self.shared.target.version.gathers() && !writes[0].is_stable() => {
                self.waiting.extend(writes, since);
            }
            kind => self.ask_alone(env, kind, since),
        }
    }

    /// Asks in a call of its own.
    pub(super) fn ask_alone(&mut self, env: &mut dyn Env, kind: Kind, since: Nanos) {
        let number = self.connection_for_next();
        self.ask_on(env, number, kind, since);
    }

    /// Asks on that connection; its xid.
    pub(super) fn ask_on(&mut self, env: &mut dyn Env, number: usize, kind: Kind, since: Nanos) -> u32 {
        if let Kind::Writes(writes) = &kind {
            self.suspect(number, writes);
        }
        let xid = self.calls.new_xid(|| env.random());
        let call = Call::new(xid, kind, &self.shared.target, &self.pool, number, since);
        let connection = &mut self.connections[number];
        connection.load += call.load();
        connection.gathered += call.gathered();
        connection.enqueue(xid);
        self.calls.insert(xid, call);
        xid
    }

    /// The connection that has least to do; but where none is idle, rather one that sends something when the batch ends anyway: what
    /// goes together costs one system call, and wakes one thread of the server.
    pub(super) fn connection_for_next(&self) -> usize {
        let loads =
            || self.connections.iter().enumerate().map(|(number, connection)| (connection.load, number));
        let (load, least) = loads().min().expect("at least one connection");
        let in_company = loads().filter(|(other, number)| {
            load > 0 && *other <= load + COMPANY && self.connections[*number].has_something_to_send()
        });
        in_company.min().map_or(least, |(_, number)| number)
    }

    /// A call is over.
    pub(super) fn take(&mut self, xid: u32) -> Option<Call> {
        let call = self.calls.remove(xid)?;
        let connection = &mut self.connections[call.connection];
        connection.load -= call.load();
        connection.gathered -= call.gathered();
        Some(call)
    }

    /// Lets everything that waits go out.
    fn pump(&mut self, env: &mut dyn Env) {
        self.ask_for_waiting(env);
        for connection in &mut self.connections {
            connection.pump(env, self.token, &self.shared, &mut self.calls);
        }
        if !self.alarmed && !self.calls.is_empty() {
            self.alarmed = true;
            self.set_timer(env, Happening::Alarm, Nanos(self.shared.timeo.0 / 4));
        }
    }

    /// Memory of so many bytes.
    pub(super) fn memory(&self, bytes: usize) -> Segment {
        Segment::new(self.pool.get(bytes), 0, bytes)
    }

    pub(super) fn set_timer(&mut self, env: &mut dyn Env, what: Happening, after: Nanos) {
        let token = self.token.of_leaf(local(what, 0, 0));
        if let Some(network) = env.network() {
            network.timer(token, after);
        }
    }

    fn read(&mut self, env: &mut dyn Env, io: &LeafIo<'_>) -> Submitted {
        let (start, len) = (io.sector.bytes(), io.nr.bytes());
        let (kept, is_all, began) = self.kept(start, len);
        let data: Segments = io.data.iter().cloned().collect();
        if is_all {
            overlay(&kept, start, &data, len);
            return Submitted::Now(Ok(()));
        }
        let len = u32::try_from(len).expect("a request within the limits");
        let reader = Reader::Client(io.token);
        let read = Read { reader, data, offset: start, len, got: 0, stuck: 0, kept, began };
        self.ask(env, Kind::Read(read));
        Submitted::Started
    }

    /// What is newer here than what the server may have of so many bytes from byte `start` on; whether that is all; and when it was looked for.
    fn kept(&self, start: u64, len: u64) -> (Vec<Piece>, bool, u64) {
        let ledger = self.ledger();
        let mut kept = ledger.kept(start, start + len);
        let is_all = kept.iter().map(|piece| piece.len as u64).sum::<u64>() == len;
        kept.append(&mut ledger.kept_of_suspected(start, start + len));
        (kept, is_all, ledger.now())
    }

    fn write(&mut self, env: &mut dyn Env, io: &LeafIo<'_>) -> Submitted {
        let (offset, bytes) = (io.sector.bytes(), io.nr.bytes());
        let len = u32::try_from(bytes).expect("a request within the limits");
        let fua = io.flags.has(Flags::FUA);
        let block = if fua { None } else { self.shared.arena.take(len as usize) };
        let flight = self.ledger().begin(offset, offset + bytes, block.is_none());
        let data: Segments = match &block {
            Some(block) => {
                let copy = block.segment(0, len as usize);
                copy_between(io.data, std::slice::from_ref(&copy));
                std::iter::once(copy).collect()
            }
            // What another process can take away cannot be sent again and again: no connection would get past it.
            None if io.data.iter().any(|segment| segment.buffer().is_mapped()) => {
                let copy = Segment::new(self.pool.get(len as usize), 0, len as usize);
                copy_between(io.data, std::slice::from_ref(&copy));
                std::iter::once(copy).collect()
            }
            None => io.data.iter().cloned().collect(),
        };
        let stable = if block.is_some() { Stable::Unstable } else { Stable::DataSync };
        let writer = Writer::Client(io.token);
        let write =
            Write { writer, flight, data, block, offset, len, stable, done: 0, stuck: 0, taken: None };
        self.ask(env, Kind::Writes(vec![write]));
        Submitted::Started
    }

    fn flush(&mut self, env: &mut dyn Env, token: Token) -> Submitted {
        self.ledger().habit.flushes();
        if self.ledger().is_clean() {
            return Submitted::Now(Ok(()));
        }
        self.start_commit(env, Cause::Flush(token));
        Submitted::Started
    }

    /// A connection has received something, or will not any more.
    fn received(
        &mut self,
        env: &mut dyn Env,
        number: usize,
        result: Result<u32, Errno>,
        ended: &mut Vec<Ended>,
    ) {
        let bytes = match result {
            Ok(0) => return self.lose(env, number, "the server has closed the connection"),
            Err(errno) => return self.lose(env, number, &errno.to_string()),
            Ok(bytes) => bytes,
        };
        let mut answered = VecDeque::new();
        let connection = &mut self.connections[number];
        let segment = connection.received(bytes);
        let mut taker = Taker {
            version: self.shared.target.version,
            calls: &mut self.calls,
            connection: number,
            reading: &mut connection.reading,
            answered: &mut answered,
        };
        let outcome = connection.incoming.feed(&segment, &mut taker);
        if !answered.is_empty() {
            self.hear();
        }
        for (xid, outcome) in answered {
            if let Some(call) = self.take(xid) {
                let sent = call.sent.expect("only what was sent is answered");
                self.connections[number].answered(sent.at, env.now());
                if call.gathered() > 0 {
                    self.waiting.hear();
                }
                self.answered(env, call, outcome, ended);
            }
        }
        self.hear_end_of_patience();
        match outcome {
            Ok(()) => self.connections[number].receive(env, self.token),
            Err(Broken::Reply(error)) => self.lose(env, number, &error.to_string()),
            Err(Broken::Length(missing)) => {
                self.lose(env, number, &format!("a reply that ends {missing} bytes too early"));
            }
        }
    }

    /// The server is there.
    fn hear(&mut self) {
        if std::mem::take(&mut self.silent) {
            log::warn!("{}: the server answers again", self.shared.name);
        }
    }

    /// The connection has ended, or nothing more can be made of what comes by it.
    fn lose(&mut self, env: &mut dyn Env, number: usize, why: &str) {
        let twice = self.calls.on(number).filter(|(_, call)| call.is_repeated && call.sent.is_some());
        let twice = twice.filter(|(_, call)| call.gathered() > 1).map(|(xid, _)| xid).collect::<Vec<u32>>();
        self.connect_anew(env, number, why);
        self.take_apart(env, &twice);
    }

    /// Ends the connection. What was asked goes out again on the next one as it was: a server that has it still does not do it twice.
    fn connect_anew(&mut self, env: &mut dyn Env, number: usize, why: &str) {
        if self.connections[number].load > 0 && !self.silent {
            self.silent = true;
            log::warn!(
                "{}: {} does not answer ({why}): what was asked is asked again until it does",
                self.shared.name,
                self.shared.address
            );
        }
        self.connections[number].lose(env, self.token, &mut self.calls);
        // Perhaps to another life of the server.
        let calls: Vec<u32> = self.calls.on(number).map(|(xid, _)| xid).collect();
        for xid in calls {
            if let Some(Call { kind: Kind::Writes(writes), .. }) = self.calls.get_ref(xid) {
                self.suspect(number, writes);
            }
        }
    }

    fn answered(&mut self, env: &mut dyn Env, call: Call, outcome: Outcome, ended: &mut Vec<Ended>) {
        if call.may_have_told(Some(&outcome)) {
            self.ledger().doubt();
        }
        let Call { kind, since, connection, patient, .. } = call;
        match (kind, outcome) {
            (Kind::Read(read), Outcome::Read(reply)) => {
                self.has_read(env, (connection, read), reply, since, ended);
            }
            (Kind::Writes(writes), Outcome::Written(done, stopped)) => {
                self.writes_answered(env, (connection, writes), (done, stopped), since, ended);
            }
            (Kind::Commit, Outcome::Commit(reply)) => {
                self.hear_life(connection, reply.verifier);
                self.has_committed(reply.verifier);
            }
            (Kind::Writes(writes), Outcome::Refused(_)) if writes.len() > 1 => {
                self.refused(env, writes, since)
            }
            (Kind::Writes(writes), Outcome::Status(status)) if writes.len() > 1 && status.is_too_much() => {
                self.refused(env, writes, since);
            }
            (kind, Outcome::Status(status)) if status.asks_for_patience() => {
                let began = patient.unwrap_or_else(|| env.now());
                self.be_patient(env, kind, (since, began), status);
            }
            // Of several only the first was looked at.
            (Kind::Writes(writes), Outcome::Status(status)) => {
                self.writes_answered(env, (connection, writes), (Vec::new(), Some(status)), since, ended);
            }
            (kind, Outcome::Status(status)) => {
                self.complain(&kind, status);
                self.failed(kind, Errno(status.errno()), ended);
            }
            (kind, Outcome::Refused(refusal)) => {
                log::error!("{}: the server refuses a call: {refusal}", self.shared.name);
                self.failed(kind, errno_of(refusal), ended);
            }
            (kind, _) => self.failed(kind, Errno::EIO, ended),
        }
    }

    /// The server has done the first of some writes, and stopped at the next one, if it says why.
    fn writes_answered(
        &mut self,
        env: &mut dyn Env,
        (connection, writes): (usize, Vec<Write>),
        (done, stopped): (Vec<WriteReply>, Option<Status>),
        since: Nanos,
        ended: &mut Vec<Ended>,
    ) {
        let size = Size::of(&writes);
        let believes = self.believes(connection, size, &done);
        let mut writes = writes.into_iter();
        // In this order: the last reply must not take a write along.
        for (number, (reply, write)) in done.into_iter().zip(&mut writes).enumerate() {
            if believes {
                self.has_written(env, write, reply, since, ended);
            } else {
                let check = Check { write, reply, size, is_first: number == 0 };
                self.check(env, connection, check, since);
            }
        }
        if let Some(status) = stopped.filter(|status| !status.asks_for_patience())
            && let Some(write) = writes.next()
        {
            let kind = Kind::Writes(vec![write]);
            self.complain(&kind, status);
            self.failed(kind, Errno(status.errno()), ended);
        }
        let rest: Vec<Write> = writes.collect();
        if !rest.is_empty() {
            self.ask_since(env, Kind::Writes(rest), since);
        }
    }

    fn has_read(
        &mut self,
        env: &mut dyn Env,
        (connection, mut read): (usize, Read),
        reply: ReadReply,
        since: Nanos,
        ended: &mut Vec<Ended>,
    ) {
        if read.got + reply.count < read.len && !reply.eof {
            // Whole sectors only: one whose halves were read at two times may be neither old nor new.
            if let Some(sectors) = progress(reply.count, &mut read.stuck) {
                read.got += sectors;
                return self.ask_since(env, Kind::Read(read), since);
            }
            let (name, asked) = (&self.shared.name, read.len - read.got);
            log::error!(
                "{name}: the server has given {} of {asked} bytes at {}, the last time of {STUCK_MAX}, and says that the file goes on",
                reply.count,
                read.offset + u64::from(read.got)
            );
            return self.failed(Kind::Read(read), Errno::EIO, ended);
        }
        read.got += reply.count;
        match read.reader {
            Reader::Client(token) => {
                let range = read.offset..read.offset + u64::from(read.len);
                if self.ledger().has_suspected_since(read.began, range) {
                    (read.kept, _, read.began) = self.kept(read.offset, read.len.into());
                    (read.got, read.stuck) = (0, 0);
                    return self.ask_since(env, Kind::Read(read), since);
                }
                overlay(&read.kept, read.offset, &read.data, read.got.into());
                ended.push(Ended { token, result: Ok(read.got) });
            }
            Reader::Check(check) => {
                let is_right = read.got == check.reply.count && check.is_right(&read.data);
                self.checked(env, connection, *check, is_right, since, ended);
            }
        }
    }

    pub(super) fn has_written(
        &mut self,
        env: &mut dyn Env,
        mut write: Write,
        reply: WriteReply,
        since: Nanos,
        ended: &mut Vec<Ended>,
    ) {
        // Whole sectors only: one whose halves were written at two times may be torn by a crash between them.
        let progress = progress(reply.count, &mut write.stuck).filter(|_| reply.committed >= write.stable);
        let Some(sectors) = progress else {
            log::error!(
                "{}: the server has written {} of {} bytes at {} (asked {} times for a whole sector), {:?} where {:?} was asked for, \
                 and calls that success",
                self.shared.name,
                reply.count,
                write.len - write.done,
                write.offset + u64::from(write.done),
                write.stuck,
                reply.committed,
                write.stable
            );
            return self.write_failed(write, Errno::EIO, ended);
        };
        if sectors == 0 {
            return self.ask_since(env, Kind::Writes(vec![write]), since);
        }
        write.done += sectors;
        // A server may make parts durable that it need not: the whole is only what the least of them is.
        let (weakest, verifier) = write.taken.unwrap_or((reply.committed, reply.verifier));
        let committed = weakest.min(reply.committed);
        write.taken = Some((committed, verifier));
        // Parts that two lives of the server have taken are kept by none of them as a whole.
        let whole = committed > Stable::Unstable || verifier == reply.verifier;
        let landed = whole && write.done == write.len && self.land(&write, committed, verifier, ended);
        if landed {
            return self.commit_ahead(env);
        }
        if !whole || write.done == write.len {
            (write.done, write.taken) = (0, None);
        }
        self.ask_since(env, Kind::Writes(vec![write]), since);
    }

    /// Books a write that is all there, so durable, in that life of the server; whether that is all.
    fn land(&mut self, write: &Write, committed: Stable, verifier: Verifier, ended: &mut Vec<Ended>) -> bool {
        match write.writer {
            Writer::Client(token) => {
                let keeps = committed == Stable::Unstable;
                let kept = write.block.clone().filter(|_| keeps).map(|block| (verifier, block));
                if self.ledger().land(write.flight, kept) == Landing::Again {
                    return false;
                }
                ended.push(Ended { token, result: Ok(write.len) });
            }
            Writer::Again(number) => {
                self.ledger().resent(write.flight, number, verifier);
                self.has_resent(Ok(()));
            }
        }
        true
    }

    /// A call has come to nothing.
    fn failed(&mut self, kind: Kind, errno: Errno, ended: &mut Vec<Ended>) {
        match kind {
            Kind::Read(read) => match read.reader {
                Reader::Client(token) => ended.push(Ended { token, result: Err(errno) }),
                Reader::Check(check) => self.write_failed(check.write, errno, ended),
            },
            Kind::Writes(writes) => {
                writes.into_iter().for_each(|write| self.write_failed(write, errno, ended));
            }
            Kind::Commit => self.commit_failed(errno),
        }
    }

    fn write_failed(&mut self, write: Write, errno: Errno, ended: &mut Vec<Ended>) {
        self.ledger().fail(write.flight);
        match write.writer {
            Writer::Client(token) => ended.push(Ended { token, result: Err(errno) }),
            Writer::Again(_) => self.has_resent(Err(errno)),
        }
    }

    fn complain(&mut self, kind: &Kind, status: Status) {
        if self.complaints.contains(&status) {
            return;
        }
        self.complaints.push(status);
        log::error!("{}: {kind}: the server says {status}; {}", self.shared.name, remedy(status));
    }

    /// Looks for what was not answered in time.
    fn look_for_silence(&mut self, env: &mut dyn Env, ended: &mut Vec<Ended>) {
        self.alarmed = false;
        let now = env.now();
        let timeo = self.shared.timeo;
        for number in 0..self.connections.len() {
            self.connections[number].look_at_line(env, &mut self.calls);
            let waits = self.connections[number].waits_since(&mut self.calls);
            let silence = waits.map_or(Nanos(0), |since| now.since(since));
            if silence > timeo {
                self.connect_anew(env, number, "its time is over");
            } else if silence.0 > timeo.0 / 4 && !self.silent {
                self.silent = true;
                log::warn!(
                    "{}: {} has not answered for {} s: it is waited for",
                    self.shared.name,
                    self.shared.address,
                    silence.0 / 1_000_000_000
                );
            }
        }
        let Some(retrans) = self.shared.retrans else { return };
        let patience = Nanos(timeo.0.saturating_mul(u64::from(retrans) + 1));
        if now <= patience {
            return;
        }
        let begun = Nanos(now.0 - patience.0);
        for xid in self.calls.older_than(begun) {
            self.give_up(env, xid, patience, ended);
        }
        for write in self.waiting.older_than(begun) {
            self.write_failed(write, SILENCE, ended);
        }
    }

    /// The time of a call on a soft mount is over.
    fn give_up(&mut self, env: &mut dyn Env, xid: u32, patience: Nanos, ended: &mut Vec<Ended>) {
        let Some(call) = self.take(xid) else { return };
        let (name, seconds) = (&self.shared.name, patience.0 / 1_000_000_000);
        log::error!("{name}: no answer for {seconds} s; it is a soft mount, so I/O fails");
        self.patience.forget(xid);
        self.connections[call.connection].forget(xid);
        if call.may_have_told(None) {
            self.ledger().doubt();
        }
        if call.sent.is_some() {
            // Its memory goes back to the client, and must not be sent any more.
            self.connect_anew(env, call.connection, "its time is over");
        }
        self.failed(call.kind, SILENCE, ended);
    }
}

impl Leaf for NfsLeaf {
    fn submit(&mut self, env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        if env.network().is_none() {
            return Submitted::Now(Err(Errno::EOPNOTSUPP));
        }
        self.token = io.token;
        match io.op {
            Op::Read => self.read(env, &io),
            Op::Write => self.write(env, &io),
            Op::Flush => self.flush(env, io.token),
            // Neither version that is spoken has a call for these; the limits say so.
            Op::Discard | Op::WriteZeroes => Submitted::Now(Err(Errno::EOPNOTSUPP)),
        }
    }

    fn submitted(&mut self, env: &mut dyn Env) {
        self.pump(env);
    }

    fn event(&mut self, env: &mut dyn Env, local: u32, completion: Completion, ended: &mut Vec<Ended>) {
        let (what, number, life) = parts(local);
        let of_connection = !matches!(what, Happening::Alarm | Happening::Patience | Happening::Others);
        if of_connection && !self.connections[number].lives(life) {
            return;
        }
        let result = completion.outcome();
        match (what, result) {
            (Happening::Connected, Ok(_)) => self.connections[number].connected(env, self.token, &self.pool),
            (Happening::Connected | Happening::Sent, Err(errno)) => {
                self.lose(env, number, &errno.to_string())
            }
            // A send that is short is followed by the loss of the connection.
            (Happening::Sent, Ok(_)) => self.connections[number].sent(),
            (Happening::Received, result) => self.received(env, number, result, ended),
            (Happening::Retry, _) => self.connections[number].retry(),
            (Happening::Alarm, _) => self.look_for_silence(env, ended),
            (Happening::Patience, _) => self.end_patience(env),
            (Happening::Others, _) => self.looks_for_others = false,
        }
        self.go_on_with_commit(env, ended);
        self.pump(env);
    }
}

/// How far a reply of `count` bytes takes a call that is not at its end: whole sectors. The rest is asked for again from there, also where
/// that is nothing; `None`: often enough.
fn progress(count: u32, stuck: &mut u32) -> Option<u32> {
    let sectors = count / SECTOR_BYTES * SECTOR_BYTES;
    *stuck = if sectors == 0 { *stuck + 1 } else { 0 };
    (*stuck < STUCK_MAX).then_some(sectors)
}

/// Puts what is newer here over what the server has given: `got` bytes from byte `start` on.
fn overlay(kept: &[Piece], start: u64, data: &Segments, got: u64) {
    for piece in kept {
        let at = piece.start - start;
        let len = (piece.len as u64).min(got.saturating_sub(at)) as usize;
        if len > 0 {
            let mut target = Segments::new();
            slice_segments(data, at as usize, len, &mut target);
            copy_between(&[piece.block.segment(piece.at, len)], &target);
        }
    }
}

fn errno_of(refusal: Refusal) -> Errno {
    Errno(if matches!(refusal, Refusal::Credential(_)) { libc::EACCES } else { libc::EIO })
}
