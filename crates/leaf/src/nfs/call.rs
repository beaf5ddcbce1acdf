//! Calls under way: what each is for, and the message that asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use blockwork_engine::{Nanos, Token};
use blockwork_format::FormatError;
use blockwork_format::nfs3::{
    self, CommitReply, Credential, Handle, ReadReply, Refusal, ReplyError, Stable, Status, Verifier,
    WriteReply,
};
use blockwork_format::nfs4;
use blockwork_memory::{Pool, Segment, Segments, copy_between, slice_segments};

use super::address::NfsVersion;
use super::arena::Block;
use super::incoming::{Replies, Rest};
use super::ledger::Piece;
use super::trust::Check;

/// See [`Call::load`].
const COMMIT_LOAD: u32 = 64;
const STABLE_LOAD: u32 = 8;

/// Whose a READ is.
pub(super) enum Reader {
    Client(Token),
    /// It looks for what was written.
    Check(Box<Check>),
}

/// A READ, and what it has brought so far.
pub(super) struct Read {
    pub(super) reader: Reader,
    pub(super) data: Segments,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Bytes that earlier replies have brought.
    pub(super) got: u32,
    /// Replies in a row that have brought no whole sector.
    pub(super) stuck: u32,
    /// What is newer here than what the server may have.
    pub(super) kept: Vec<Piece>,
    /// When that was looked for.
    pub(super) began: u64,
}

/// Whose a write is.
#[derive(Clone, Copy)]
pub(super) enum Writer {
    Client(Token),
    /// Sent again after a restart: the number of its entry in the ledger.
    Again(u64),
}

/// A WRITE, and how far it is.
pub(super) struct Write {
    pub(super) writer: Writer,
    /// Its name in the ledger.
    pub(super) flight: u64,
    pub(super) data: Segments,
    /// Where its data is kept until it is durable.
    pub(super) block: Option<Arc<Block>>,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) stable: Stable,
    /// Bytes that earlier replies have confirmed.
    pub(super) done: u32,
    /// Replies in a row that have confirmed no whole sector.
    pub(super) stuck: u32,
    /// How durable the least of them is, and which life of the server has them.
    pub(super) taken: Option<(Stable, Verifier)>,
}

impl Write {
    /// Whether the server is to make it durable at once.
    pub(super) fn is_stable(&self) -> bool {
        self.stable > Stable::Unstable
    }

    /// What is still to be written.
    pub(super) fn left(&self) -> nfs4::Place {
        nfs4::Place { offset: self.offset + u64::from(self.done), count: self.len - self.done }
    }

    /// Adds its data as far as it is still to be written.
    fn push_data(&self, out: &mut Segments) {
        slice_segments(&self.data, self.done as usize, self.left().count as usize, out);
    }
}

/// What is asked.
pub(super) enum Kind {
    Read(Read),
    /// At least one; in version 3 never more, and those that the server is to make durable go alone as well.
    Writes(Vec<Write>),
    Commit,
}

/// As the log calls it.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Read(read) => write!(f, "READ at byte {}", read.offset),
            Kind::Writes(writes) => write!(f, "WRITE at byte {}", writes[0].offset),
            Kind::Commit => f.write_str("COMMIT"),
        }
    }
}

/// Of which file, by whom, and how.
pub(super) struct Target {
    pub(super) version: NfsVersion,
    pub(super) credential: Credential,
    pub(super) handle: Handle,
}

/// One call: asked, or to be asked.
pub(super) struct Call {
    pub(super) kind: Kind,
    message: Segments,
    /// On which connection.
    pub(super) connection: usize,
    /// How it was given to that connection last; not, while it waits in its queue.
    pub(super) sent: Option<Sent>,
    /// It was given to another one before, where an answer may have been lost.
    pub(super) is_repeated: bool,
    /// When its kind was asked first.
    pub(super) since: Nanos,
    /// Since when the server asks for patience with it.
    pub(super) patient: Option<Nanos>,
}

/// A call that was given to a connection.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub(super) at: Nanos,
    /// Where it ends among all bytes of that connection.
    pub(super) end: u64,
    /// When some of it was seen to have moved last.
    pub(super) moved: Nanos,
}

/// What has become of a call.
pub(super) enum Outcome {
    Read(ReadReply),
    /// The first of its writes, which were done; and why the next one was not. Those behind that one were not looked at.
    Written(Vec<WriteReply>, Option<Status>),
    Commit(CommitReply),
    /// Nothing of it was done.
    Status(Status),
    Refused(Refusal),
}

/// All calls of a worker on one file.
pub(super) struct Calls {
    all: BTreeMap<u32, Call>,
    next: Option<u32>,
}

impl Calls {
    pub(super) fn new() -> Calls {
        Calls { all: BTreeMap::new(), next: None }
    }

    /// A new xid: servers take two calls with equal ones for the same. The first is `random`.
    pub(super) fn new_xid(&mut self, random: impl FnOnce() -> u64) -> u32 {
        let xid = self.next.unwrap_or_else(|| (random() & 0xffff_ffff) as u32);
        self.next = Some(xid.wrapping_add(1));
        xid
    }

    pub(super) fn insert(&mut self, xid: u32, call: Call) {
        let old = self.all.insert(xid, call);
        assert!(old.is_none(), "2^32 calls are not under way at once");
    }
    pub(super) fn get_ref(&self, xid: u32) -> Option<&Call> {
        self.all.get(&xid)
    }
    pub(super) fn get(&mut self, xid: u32) -> Option<&mut Call> {
        self.all.get_mut(&xid)
    }
    pub(super) fn remove(&mut self, xid: u32) -> Option<Call> {
        self.all.remove(&xid)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// Whether several writes are asked for in one call, or looked for.
    pub(super) fn try_several(&self) -> bool {
        self.all.values().any(|call| match &call.kind {
            Kind::Writes(writes) => writes.len() > 1,
            Kind::Read(read) => matches!(read.reader, Reader::Check(_)),
            Kind::Commit => false,
        })
    }
    /// Whether the server has asked for patience with one.
    pub(super) fn any_patient(&self) -> bool {
        self.all.values().any(|call| call.patient.is_some())
    }
    /// Xids and calls on that connection.
    pub(super) fn on(&mut self, connection: usize) -> impl Iterator<Item = (u32, &mut Call)> {
        let all = self.all.iter_mut().map(|(xid, call)| (*xid, call));
        all.filter(move |(_, call)| call.connection == connection)
    }
    /// Those that were asked first before then.
    pub(super) fn older_than(&self, time: Nanos) -> Vec<u32> {
        self.all.iter().filter(|(_, call)| call.since < time).map(|(xid, _)| *xid).collect()
    }
}

impl Call {
    /// The call for what is left of `kind`.
    pub(super) fn new(
        xid: u32,
        kind: Kind,
        target: &Target,
        pool: &Pool,
        connection: usize,
        since: Nanos,
    ) -> Call {
        let message = message(xid, &kind, target, pool);
        Call { kind, message, connection, sent: None, is_repeated: false, since, patient: None }
    }

    /// How much it keeps others waiting that are asked on the same connection, as a multiple of a READ. Servers do one call of a connection
    /// after the other, and a disk takes as long to make something durable as a server does for many calls.
    pub(super) fn load(&self) -> u32 {
        match &self.kind {
            Kind::Commit => COMMIT_LOAD,
            Kind::Writes(writes) if writes[0].is_stable() => STABLE_LOAD,
            Kind::Writes(writes) => u32::try_from(writes.len()).expect("few"),
            Kind::Read(_) => 1,
        }
    }

    /// Whether the answer may be the second one, or none has come, to what makes something durable; or such a write has failed. What the
    /// server had lost before may have been told by that.
    pub(super) fn may_have_told(&self, outcome: Option<&Outcome>) -> bool {
        let has_failed = match outcome {
            Some(Outcome::Status(status)) => !status.asks_for_patience(),
            Some(Outcome::Refused(_)) | None => true,
            Some(_) => false,
        };
        match &self.kind {
            Kind::Commit => self.is_repeated,
            Kind::Writes(writes) => writes[0].is_stable() && (self.is_repeated || has_failed),
            Kind::Read(_) => false,
        }
    }

    /// How many writes it has of those that go together with others.
    pub(super) fn gathered(&self) -> u32 {
        match &self.kind {
            Kind::Writes(writes) if !writes[0].is_stable() => u32::try_from(writes.len()).expect("few"),
            _ => 0,
        }
    }

    /// The message.
    pub(super) fn message(&self) -> &[Segment] {
        &self.message
    }
}

/// The message that asks for what is left of `kind`.
fn message(xid: u32, kind: &Kind, target: &Target, pool: &Pool) -> Segments {
    let Target { version, credential, handle } = target;
    let head = match (kind, version) {
        (Kind::Writes(writes), NfsVersion::V3) => {
            let [write] = &writes[..] else { unreachable!("version 3 has no call for several writes") };
            let left = write.left();
            nfs3::write(xid, credential, handle, left.offset, left.count, write.stable)
        }
        (Kind::Writes(writes), NfsVersion::V4) => return message_of_writes(xid, writes, target, pool),
        (Kind::Read(read), version) => {
            let (offset, count) = (read.offset + u64::from(read.got), read.len - read.got);
            match version {
                NfsVersion::V3 => nfs3::read(xid, credential, handle, offset, count),
                NfsVersion::V4 => nfs4::read(xid, credential, handle, offset, count),
            }
        }
        (Kind::Commit, NfsVersion::V3) => nfs3::commit(xid, credential, handle),
        (Kind::Commit, NfsVersion::V4) => nfs4::commit(xid, credential, handle),
    };
    let mut out: Segments = std::iter::once(in_memory(&head, pool)).collect();
    if let Kind::Writes(writes) = kind {
        writes[0].push_data(&mut out);
    }
    out
}

/// Heads and data by turns.
fn message_of_writes(xid: u32, writes: &[Write], target: &Target, pool: &Pool) -> Segments {
    let places = writes.iter().map(Write::left);
    let heads = nfs4::writes(xid, &target.credential, &target.handle, writes[0].stable, places);
    let all = in_memory(&heads.bytes, pool);
    let mut out = Segments::new();
    for (head, write) in heads.heads().zip(writes) {
        out.push(all.slice(head.start, head.len()));
        write.push_data(&mut out);
    }
    out
}

fn in_memory(bytes: &[u8], pool: &Pool) -> Segment {
    let buffer = pool.get(bytes.len());
    buffer.write_at(0, bytes);
    Segment::new(buffer, 0, bytes.len())
}

/// Takes the replies of one connection.
pub(super) struct Taker<'a> {
    pub(super) version: NfsVersion,
    pub(super) calls: &'a mut Calls,
    pub(super) connection: usize,
    /// The READ whose data is being received.
    pub(super) reading: &'a mut Option<(u32, ReadReply)>,
    /// Calls that were answered.
    pub(super) answered: &'a mut VecDeque<(u32, Outcome)>,
}

impl Replies for Taker<'_> {
    fn reply(&mut self, message: &[u8]) -> Result<Rest, ReplyError> {
        let xid = nfs3::reply_xid(message).ok_or(ReplyError::Short)?;
        let ours =
            self.calls.get(xid).filter(|call| call.connection == self.connection && call.sent.is_some());
        // An answer to what was answered before.
        let Some(call) = ours else { return Ok(Rest::Skip) };
        if self.answered.iter().any(|(answered, _)| *answered == xid) {
            return Ok(Rest::Skip);
        }
        let at = match nfs3::reply(message)?.outcome {
            Ok(at) => at,
            Err(refusal) => {
                self.answered.push_back((xid, Outcome::Refused(refusal)));
                return Ok(Rest::Skip);
            }
        };
        let outcome = match (&call.kind, self.version) {
            (Kind::Read(read), version) => match read_reply(version, message, at)? {
                Ok(reply) => {
                    let asked = read.len - read.got;
                    if reply.count > asked {
                        return Err(too_many("READ reply", reply.count, asked));
                    }
                    *self.reading = Some((xid, reply));
                    return Ok(Rest::Data { at: reply.data_at, len: reply.count as usize });
                }
                Err(status) => Outcome::Status(status),
            },
            (Kind::Writes(writes), version) => writes_reply(version, message, at, writes)?,
            (Kind::Commit, NfsVersion::V3) => {
                nfs3::commit_reply(message, at)?.map_or_else(Outcome::Status, Outcome::Commit)
            }
            (Kind::Commit, NfsVersion::V4) => {
                nfs4::commit_reply(message, at)?.map_or_else(Outcome::Status, Outcome::Commit)
            }
        };
        self.answered.push_back((xid, outcome));
        Ok(Rest::Skip)
    }

    fn bytes(&mut self, at: usize, data: &[u8]) {
        let mut skip = 0;
        for target in self.target(at, data.len()) {
            target.write_at(0, &data[skip..skip + target.len()]);
            skip += target.len();
        }
    }

    fn segment(&mut self, at: usize, data: &Segment) {
        let target = self.target(at, data.len());
        copy_between(std::slice::from_ref(data), &target);
    }

    fn end(&mut self) {
        if let Some((xid, reply)) = self.reading.take() {
            self.answered.push_back((xid, Outcome::Read(reply)));
        }
    }
}

impl Taker<'_> {
    /// Where `len` bytes of data at `at` of the reply belong.
    fn target(&mut self, at: usize, len: usize) -> Segments {
        let mut out = Segments::new();
        // A call that was given up meanwhile wants nothing.
        if let Some((xid, _)) = *self.reading
            && let Some(Call { kind: Kind::Read(read), .. }) = self.calls.get(xid)
            && len > 0
        {
            slice_segments(&read.data, read.got as usize + at, len, &mut out);
        }
        out
    }
}

/// Decodes the answer to READ.
pub(super) fn read_reply(
    version: NfsVersion,
    message: &[u8],
    at: usize,
) -> Result<Result<ReadReply, Status>, ReplyError> {
    match version {
        NfsVersion::V3 => nfs3::read_reply(message, at),
        NfsVersion::V4 => nfs4::read_reply(message, at),
    }
}

fn writes_reply(
    version: NfsVersion,
    message: &[u8],
    at: usize,
    writes: &[Write],
) -> Result<Outcome, ReplyError> {
    let (done, stopped) = match version {
        NfsVersion::V3 => match nfs3::write_reply(message, at)? {
            Ok(reply) => (vec![reply], None),
            Err(status) => (Vec::new(), Some(status)),
        },
        NfsVersion::V4 => {
            let reply = nfs4::writes_reply(message, at, writes.len())?;
            (reply.done, reply.stopped)
        }
    };
    for (write, reply) in writes.iter().zip(&done) {
        let asked = write.left().count;
        if reply.count > asked {
            return Err(too_many("WRITE reply", reply.count, asked));
        }
    }
    Ok(match stopped {
        Some(status) if done.is_empty() => Outcome::Status(status),
        stopped => Outcome::Written(done, stopped),
    })
}

fn too_many(place: &'static str, found: u32, asked: u32) -> ReplyError {
    ReplyError::Invalid(FormatError::invalid(place, 0, "count", found, format_args!("{asked} at most")))
}
