//! Calls under way: what each is for, and the message that asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use blockwork_engine::{Nanos, Token};
use blockwork_format::FormatError;
use blockwork_format::nfs3::{
    self, CommitReply, Credential, Handle, ReadReply, Refusal, ReplyError, Stable, Status, Verifier,
    WriteReply,
};
use blockwork_memory::{Pool, Segment, Segments, copy_between, slice_segments};

use super::arena::Block;
use super::incoming::{Replies, Rest};
use super::ledger::Piece;

/// See [`Call::load`].
const COMMIT_LOAD: u32 = 64;
const STABLE_LOAD: u32 = 8;

/// A READ, and what it has brought so far.
pub(super) struct Read {
    pub(super) request: Token,
    pub(super) data: Segments,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Bytes that earlier replies have brought.
    pub(super) got: u32,
    /// Replies in a row that have brought no whole sector.
    pub(super) stuck: u32,
    /// What is newer here than what the server may have.
    pub(super) kept: Vec<Piece>,
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
}

/// What is asked.
pub(super) enum Kind {
    Read(Read),
    Write(Write),
    Commit,
}

/// One call: asked, or to be asked.
pub(super) struct Call {
    pub(super) kind: Kind,
    head: Segment,
    body: Segments,
    /// On which connection.
    pub(super) connection: usize,
    /// When it was given to that connection last; not, while it waits in its queue.
    pub(super) sent: Option<Nanos>,
    /// It was given to another one before, where an answer may have been lost.
    pub(super) is_repeated: bool,
    /// When its kind was asked first.
    pub(super) since: Nanos,
}

/// What has become of a call.
pub(super) enum Outcome {
    Read(ReadReply),
    Write(WriteReply),
    Commit(CommitReply),
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

    /// The xid that was given out last.
    pub(super) fn last(&self) -> u32 {
        self.next.expect("one was given out").wrapping_sub(1)
    }

    pub(super) fn insert(&mut self, xid: u32, call: Call) {
        let old = self.all.insert(xid, call);
        assert!(old.is_none(), "2^32 calls are not under way at once");
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
        (credential, handle): (&Credential, &Handle),
        pool: &Pool,
        connection: usize,
        since: Nanos,
    ) -> Call {
        let mut body = Segments::new();
        let head = match &kind {
            Kind::Read(Read { offset, len, got, .. }) => {
                nfs3::read(xid, credential, handle, offset + u64::from(*got), len - got)
            }
            Kind::Write(Write { offset, len, done, stable, data, .. }) => {
                slice_segments(data, *done as usize, (len - done) as usize, &mut body);
                nfs3::write(xid, credential, handle, offset + u64::from(*done), len - done, *stable)
            }
            Kind::Commit => nfs3::commit(xid, credential, handle),
        };
        let buffer = pool.get(head.len());
        buffer.write_at(0, &head);
        let head = Segment::new(buffer, 0, head.len());
        Call { kind, head, body, connection, sent: None, is_repeated: false, since }
    }

    /// How much it keeps others waiting that are asked on the same connection, as a multiple of a READ. Servers do one call of a connection
    /// after the other, and a disk takes as long to make something durable as a server does for many calls.
    pub(super) fn load(&self) -> u32 {
        match &self.kind {
            Kind::Commit => COMMIT_LOAD,
            Kind::Write(write) if write.is_stable() => STABLE_LOAD,
            Kind::Read(_) | Kind::Write(_) => 1,
        }
    }

    /// Whether the answer may be the second one, or none has come, to what makes something durable; or such a write has failed. What the
    /// server had lost before may have been told by that.
    pub(super) fn may_have_told(&self, outcome: Option<&Outcome>) -> bool {
        let has_failed = match outcome {
            Some(Outcome::Status(status)) => *status != Status::JUKEBOX,
            Some(Outcome::Refused(_)) | None => true,
            Some(_) => false,
        };
        match &self.kind {
            Kind::Commit => self.is_repeated,
            Kind::Write(write) => write.is_stable() && (self.is_repeated || has_failed),
            Kind::Read(_) => false,
        }
    }

    /// The message.
    pub(super) fn message(&self) -> impl Iterator<Item = &Segment> {
        std::iter::once(&self.head).chain(&self.body)
    }

    /// Number of its segments.
    pub(super) fn segments(&self) -> usize {
        1 + self.body.len()
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.message().map(Segment::len).sum()
    }
}

/// Takes the replies of one connection.
pub(super) struct Taker<'a> {
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
        let outcome = match &call.kind {
            Kind::Read(read) => match nfs3::read_reply(message, at)? {
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
            Kind::Write(write) => match nfs3::write_reply(message, at)? {
                Ok(reply) => {
                    let asked = write.len - write.done;
                    if reply.count > asked {
                        return Err(too_many("WRITE reply", reply.count, asked));
                    }
                    Outcome::Write(reply)
                }
                Err(status) => Outcome::Status(status),
            },
            Kind::Commit => nfs3::commit_reply(message, at)?.map_or_else(Outcome::Status, Outcome::Commit),
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

fn too_many(place: &'static str, found: u32, asked: u32) -> ReplyError {
    ReplyError::Invalid(FormatError::invalid(place, 0, "count", found, format_args!("{asked} at most")))
}
