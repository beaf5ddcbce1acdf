//! One client: its socket on one side, a worker's bios on the other.
//!
//! A turn of the worker brings what was received: all complete requests in it are submitted at once; what they come to is
//! gathered, and leaves in one send; then the next receive is started. At most one receive and one send are under way.
//! Small payloads are copied out of the receive buffer into aligned memory; the rest of a large one is received straight
//! into it, and after a few of one length the next ones as a whole (`guess`). The data of a read is sent from where it was read to.
//! Large reads are begun a few at a time, as the answers before them leave ([`AHEAD`]): what is sent is still in the processor's cache
//! then, and other requests overtake them. Nor are there ever more of them under way than keep the disks busy (`budget`).
//!
//! Invariants:
//! 1. Requests, their memory (which reads that wait to be begun will need, too), and answers that the client has not read all count
//!    against the client's limits, and against what all clients may hold (`budget`). At a limit nothing more is taken from the socket until
//!    something has been sent.
//! 2. A request that was submitted runs to its end whatever becomes of the client; its memory lives until then.
//! 3. After the client has ended its stream (or broken the protocol), what it asked for before is finished and answered;
//!    then, or after `linger`, the connection closes.
//! 4. Without a chosen export within the handshake's time, the connection closes.
//! 5. In steady state nothing is allocated per request.

mod cipher;
mod guess;
mod inbox;
mod outbox;
mod port;
mod requests;
mod status;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use blockwork_engine::{Bio, Context, Done, Flags, Nanos, Op};
use blockwork_format::nbd::{ReplyHead, WireErrno};
use blockwork_memory::Segments;
use blockwork_uring::Uring;

use self::cipher::{Cipher, Decrypted};
use self::guess::{Guess, Offered};
use self::inbox::Inbox;
use self::outbox::Outbox;
use self::requests::{Filling, Requests};
use super::budget::Share;
use super::config::NbdConfig;
use super::server::Ticket;
use super::session::{CloseReason, Handshake, Kind, Progress, Step, Submit, TlsState, Transmission};
use crate::offered::ASK_AGAIN;

/// Longest request header, bytes.
const HEADER_MAX: usize = 32;
/// A payload that misses at least this many bytes is received straight into its memory.
const DIRECT_MIN: usize = 32 << 10;
/// Unsent answers at which a handshake goes no further, bytes.
const HANDSHAKE_UNSENT_MAX: usize = 256 << 10;

/// Steps of a handshake in one turn, of which an option takes two: clients need fewer, and what the longest one costs (a list of all exports)
/// others can wait for. The worker looks at everybody else before there are more.
const HANDSHAKE_STEPS_MAX: u32 = 32;

/// Bytes of reads that are begun in one turn, and bytes of answers that may wait for the send under way to end, before further
/// reads wait. Of 16 reads of 1 MiB that are begun at once, each answer has left the cache before it is sent.
const AHEAD: usize = 512 << 10;

/// Operations of ours in the environment.
mod local {
    pub(super) const RECV: u32 = 0;
    pub(super) const SEND: u32 = 1;
    pub(super) const HANDSHAKE_TIMER: u32 = 2;
    pub(super) const LINGER_TIMER: u32 = 3;
    /// A timer that is due at once: go on after the worker has looked at everybody else.
    pub(super) const AGAIN: u32 = 4;
}

/// Where the session stands.
enum Phase {
    /// Only while one phase makes the next.
    Between,
    Handshake(Handshake),
    Transmission(Transmission),
}

/// What the receive under way fills.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Nothing,
    Inbox,
    Payload,
    /// What is guessed that comes.
    Guessed,
}

/// Why no more is taken from the client.
#[derive(Debug)]
enum Ended {
    /// End of the stream, or a socket error.
    Gone,
    /// The session is over.
    Session(CloseReason),
    /// TLS failed.
    Tls(rustls::Error),
    /// It took too long.
    TooSlow,
    /// The server is going down.
    Shutdown,
}

/// One client.
pub(super) struct Connection {
    fd: Arc<OwnedFd>,
    config: Arc<NbdConfig>,
    ticket: Ticket,
    share: Share,
    phase: Phase,
    cipher: Option<Box<Cipher>>,
    inbox: Inbox,
    outbox: Outbox,
    requests: Requests,
    filling: Option<Filling>,
    guess: Guess,
    /// Memory for the next request, if that is what was guessed.
    offered: Option<Offered>,
    /// Bytes of refused payload still to be thrown away.
    skip: usize,
    receiving: Receiving,
    /// Bytes of reads begun in this turn.
    begun: usize,
    /// Processor time that look-ups of this turn took.
    looked: Nanos,
    /// Steps of the handshake in this turn.
    steps: u32,
    /// No request or option is taken until the timer [`local::AGAIN`] has come.
    paused: bool,
    /// Bytes in the send under way.
    under_way: Option<usize>,
    /// What is in the outbox was said before TLS, and leaves in clear text.
    clear_left: bool,
    /// A limit was met, or the turn has taken long enough, with something left to do.
    stalled: bool,
    ended: Option<Ended>,
    draining: bool,
    lingering: bool,
    /// Nothing can be sent any more.
    dead: bool,
    /// The greeting, until it is sent; then what a handshake looks at.
    scratch: Vec<u8>,
}

impl Connection {
    /// A client that was just accepted on `fd`.
    pub(super) fn new(fd: OwnedFd, config: Arc<NbdConfig>, ticket: Ticket, share: Share) -> Connection {
        let mut scratch = Vec::new();
        let tls = if config.tls.is_some() { TlsState::Required } else { TlsState::Off };
        let handshake = Handshake::new(config.exports.clone(), tls, &mut scratch);
        Connection {
            fd: Arc::new(fd),
            config,
            ticket,
            share,
            phase: Phase::Handshake(handshake),
            cipher: None,
            inbox: Inbox::new(),
            outbox: Outbox::default(),
            requests: Requests::default(),
            filling: None,
            guess: Guess::default(),
            offered: None,
            skip: 0,
            receiving: Receiving::Nothing,
            begun: 0,
            looked: Nanos(0),
            steps: 0,
            paused: false,
            under_way: None,
            clear_left: false,
            stalled: false,
            ended: None,
            draining: false,
            lingering: false,
            dead: false,
            scratch,
        }
    }

    /// Does all that can be done with what was received.
    fn take_input(&mut self, cx: &mut Context<'_, Uring>) {
        self.stalled = false;
        loop {
            let is_over = match self.decrypt(cx) {
                Ok(is_over) => is_over,
                Err(ended) => {
                    self.end(ended);
                    true
                }
            };
            let before = self.inbox.len();
            self.take_clear(cx);
            if is_over && !self.stalled {
                // What is left is a part of a message, whose rest never comes.
                self.end(Ended::Gone);
            }
            // Room was made: there may be more to decrypt.
            let go_on = self.cipher.is_some() && self.inbox.len() < before;
            if !go_on || self.stalled || self.ended.is_some() {
                return;
            }
        }
    }

    /// Whether the client has said that nothing follows: nothing of what comes behind that is taken.
    fn decrypt(&mut self, cx: &Context<'_, Uring>) -> Result<bool, Ended> {
        let Some(cipher) = &mut self.cipher else { return Ok(false) };
        match cipher.decrypt(&mut self.inbox, cx.pool()) {
            Ok(Decrypted::Progress) => Ok(false),
            Ok(Decrypted::End) => Ok(true),
            Err(error) => Err(Ended::Tls(error)),
        }
    }

    fn take_clear(&mut self, cx: &mut Context<'_, Uring>) {
        while self.ended.is_none() {
            let went_on = match &self.phase {
                Phase::Handshake(_) => self.handshake(cx),
                Phase::Transmission(_) => self.transmission(cx),
                Phase::Between => unreachable!("a phase follows the one before at once"),
            };
            if !went_on {
                return;
            }
        }
    }

    /// One step of the handshake; tells whether there may be another.
    fn handshake(&mut self, cx: &mut Context<'_, Uring>) -> bool {
        let Phase::Handshake(handshake) = &self.phase else { unreachable!("only in the handshake") };
        // What was put off is all there.
        if self.inbox.len() == 0 && handshake.wanted() > 0 {
            return false;
        }
        if self.steps >= HANDSHAKE_STEPS_MAX && !self.paused {
            self.pause(cx, Nanos(0));
        }
        if self.paused || self.outbox.held() > HANDSHAKE_UNSENT_MAX {
            self.stalled = true;
            return false;
        }
        self.steps += 1;
        let Phase::Handshake(handshake) = &mut self.phase else { unreachable!("only in the handshake") };
        let mut out = Vec::new();
        let (taken, progress) = step(handshake, &mut self.inbox, &mut self.scratch, &mut out);
        self.outbox.bytes(cx.pool(), &out);
        match progress {
            Progress::More => taken > 0,
            Progress::Later => {
                self.pause(cx, ASK_AGAIN);
                self.stalled = true;
                false
            }
            Progress::StartTls => {
                self.start_tls();
                true
            }
            Progress::Go(transmission) => {
                self.phase = Phase::Transmission(transmission);
                self.scratch = Vec::new();
                let timer = cx.token(local::HANDSHAKE_TIMER);
                cx.env.cancel(timer);
                true
            }
            Progress::Close(reason) => {
                self.end(Ended::Session(reason));
                false
            }
        }
    }

    /// The answer in the outbox is the last thing in clear text.
    fn start_tls(&mut self) {
        let tls = self.config.tls.as_ref().expect("only where TLS is configured is it accepted");
        match Cipher::new(tls) {
            Ok(cipher) => {
                self.cipher = Some(Box::new(cipher));
                self.clear_left = true;
            }
            Err(error) => return self.end(Ended::Tls(error)),
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Between) {
            Phase::Handshake(handshake) => Phase::Handshake(handshake.after_tls()),
            other => other,
        };
    }

    /// One step of the transmission phase; tells whether there may be another.
    #[inline]
    fn transmission(&mut self, cx: &mut Context<'_, Uring>) -> bool {
        if self.skip > 0 {
            let take = self.skip.min(self.inbox.len());
            self.inbox.consume(take);
            self.skip -= take;
            return self.skip == 0;
        }
        if let Some(filling) = &mut self.filling {
            fill(filling, &mut self.inbox);
            if filling.missing() > 0 {
                return false;
            }
            let filling = self.filling.take().expect("it is there");
            self.submit(cx, filling.submit, filling.data, filling.held);
            return true;
        }
        let Phase::Transmission(session) = &self.phase else { unreachable!("only in transmission") };
        let wanted = session.wanted();
        if self.inbox.len() < wanted {
            return false;
        }
        if self.paused || self.is_at_a_limit() {
            self.stalled = true;
            return false;
        }
        let mut header = [0; HEADER_MAX];
        let header = &mut header[..wanted];
        self.inbox.peek(header);
        self.inbox.consume(wanted);
        let Phase::Transmission(session) = &mut self.phase else { unreachable!("only in transmission") };
        match session.request(header) {
            Ok(Step::Submit(submit)) => self.begin(cx, submit),
            Ok(Step::Answer(refusal)) => {
                self.outbox.reply(cx.pool(), refusal.reply.as_bytes());
                self.skip = usize::try_from(refusal.skip).expect("a payload fits memory");
            }
            Ok(Step::More) => {}
            Ok(Step::Disconnect) => self.end(Ended::Session(CloseReason::Disconnected)),
            Err(reason) => self.end(Ended::Session(reason)),
        }
        true
    }

    /// Whether the client has to read answers before another request is taken.
    #[inline]
    fn is_at_a_limit(&mut self) -> bool {
        let held = self.held();
        self.requests.len() + self.outbox.replies() >= self.config.requests_max
            || held >= self.config.bytes_max
            || !self.share.may_take(held)
    }

    /// Bytes of memory that the client's requests and answers have.
    #[inline]
    fn held(&self) -> usize {
        let filling = self.filling.as_ref().map_or(0, |filling| filling.held);
        filling + self.requests.held() + self.outbox.held()
    }

    /// Begins a request: at once, or for a write, when its payload is there.
    #[inline]
    fn begin(&mut self, cx: &mut Context<'_, Uring>, submit: Submit) {
        if !matches!(submit.kind, Kind::Write { .. }) {
            self.guess.saw_other();
        }
        match submit.kind {
            Kind::Write { .. } => {
                let len = requests::data_len(&submit);
                self.guess.saw_write(len);
                self.filling = Some(match self.offered.take_if(|offered| offered.part.len() == len) {
                    Some(Offered { part, there }) => Filling::begun(submit, part.data, part.held, there, len),
                    None => Filling::new(cx.pool(), submit, len),
                });
            }
            Kind::Read if self.must_wait(cx, &submit) => self.requests.wait(submit),
            Kind::Read => self.read(cx, submit),
            Kind::BlockStatus { one } => self.block_status(cx, submit, one),
            Kind::Flush | Kind::Trim { .. } | Kind::WriteZeroes { .. } => {
                self.submit(cx, submit, Segments::new(), 0)
            }
        }
    }

    #[inline]
    fn read(&mut self, cx: &mut Context<'_, Uring>, submit: Submit) {
        let len = requests::data_len(&submit);
        let (data, held) = requests::memory(cx.pool(), len);
        self.begun += len;
        self.submit(cx, submit, data, held);
    }

    /// Whether that read has to wait: for answers to leave, for others that came before it, or as there is enough under way, for which small ones
    /// wait to the end of this turn only.
    #[inline]
    fn must_wait(&self, cx: &Context<'_, Uring>, read: &Submit) -> bool {
        !self.may_begin() || self.requests.is_any_before(read) || self.has_enough_under_way(cx)
    }

    /// Whether more reads may be begun in this turn.
    #[inline]
    fn may_begin(&self) -> bool {
        self.begun < AHEAD && self.outbox.queued() < AHEAD
    }

    /// Whether more large reads under way would gain nothing. While one is, its end brings the next turn.
    #[inline]
    fn has_enough_under_way(&self, cx: &Context<'_, Uring>) -> bool {
        let (reading, unsent) = (self.requests.reading(), self.outbox.held());
        reading > 0
            && reading + unsent >= self.share.enough(None)
            && reading + unsent >= self.share.enough(cx.distance())
    }

    /// What was guessed was received into, so many bytes: the rest of a payload, writes where they belong, and whatever else.
    fn take_guessed(&mut self, cx: &mut Context<'_, Uring>, bytes: usize) {
        let (mut left, mut is_other) = (bytes, false);
        if let Some(filling) = &mut self.filling {
            let rest = filling.missing().min(left);
            filling.filled(rest);
            left -= rest;
            self.take_input(cx);
        }
        while left > 0
            && let Some(part) = self.guess.next()
        {
            let (head, there) = part.received(left);
            left -= head + there;
            self.inbox.put(cx.pool(), &part.head.slice(0, head));
            self.offered = Some(Offered { part, there });
            if !is_other {
                self.take_input(cx);
            }
            if let Some(Offered { part, there }) = self.offered.take()
                && there > 0
            {
                self.inbox.put(cx.pool(), &part.first.slice(0, there));
                is_other = true;
            }
        }
        self.guess.clear();
        if is_other && !self.stalled && self.ended.is_none() {
            self.take_input(cx);
        }
    }

    /// Begins reads that had to wait, as far as answers have left.
    fn begin_waiting(&mut self, cx: &mut Context<'_, Uring>) {
        self.begun = 0;
        while self.may_begin() {
            let large_too = !self.has_enough_under_way(cx);
            let Some(submit) = self.requests.next_waiting(large_too) else { return };
            self.read(cx, submit);
        }
        if self.outbox.queued() < AHEAD {
            cx.wake_me(); // the turn is over, and nothing else would wake us
        }
    }

    #[inline]
    fn submit(&mut self, cx: &mut Context<'_, Uring>, submit: Submit, data: Segments, held: usize) {
        let Phase::Transmission(session) = &self.phase else { unreachable!("only in transmission") };
        let volume = session.export().volume;
        let cookie = self.requests.insert(submit, held);
        let when = |condition: bool, flag: Flags| if condition { flag } else { Flags::NONE };
        let (op, flags) = match submit.kind {
            Kind::Flush => return cx.submit(volume, cookie, Bio::flush()),
            Kind::Read => (Op::Read, Flags::NONE),
            Kind::Write { fua } => (Op::Write, when(fua, Flags::FUA)),
            Kind::Trim { fua } => (Op::Discard, when(fua, Flags::FUA)),
            Kind::WriteZeroes { fua, no_hole, fast } => (
                Op::WriteZeroes,
                when(fua, Flags::FUA).with(when(no_hole, Flags::NO_UNMAP)).with(when(fast, Flags::FAST_ONLY)),
            ),
            Kind::BlockStatus { .. } => unreachable!("block status is answered without a bio"),
        };
        cx.submit_bytes(volume, cookie, op, flags, submit.offset, submit.len, data);
    }

    /// A bio has completed: queues its answer.
    #[inline]
    fn answer(&mut self, cx: &Context<'_, Uring>, done: Done) {
        let request = self.requests.remove(done.cookie);
        if self.dead {
            return;
        }
        let Phase::Transmission(session) = &self.phase else { unreachable!("only in transmission") };
        match done.result {
            Ok(()) => {
                let head: ReplyHead = session.success(&request.submit);
                self.outbox.reply(cx.pool(), head.as_bytes());
                if request.submit.kind == Kind::Read {
                    self.outbox.data(done.data, request.held);
                }
            }
            Err(errno) => {
                let head = session.failure(&request.submit, WireErrno::from_linux(errno.0));
                self.outbox.reply(cx.pool(), head.as_bytes());
            }
        }
    }

    /// Takes nothing more from the client.
    fn end(&mut self, ended: Ended) {
        if self.ended.is_none() {
            match &ended {
                Ended::Gone
                | Ended::Shutdown
                | Ended::Session(CloseReason::Disconnected | CloseReason::Aborted) => {
                    log::debug!("nbd client {}: {ended}", self.ticket.number());
                }
                _ => self.ticket.let_go(&ended),
            }
            self.ended = Some(ended);
        }
        self.filling = None;
        self.guess.clear();
    }
}

/// Gives a handshake what it wants next, as far as it is there: what is put together for it is what it takes.
fn step(
    handshake: &mut Handshake,
    inbox: &mut Inbox,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> (usize, Progress) {
    let window = handshake.wanted().min(inbox.len());
    scratch.resize(window, 0);
    inbox.peek(scratch);
    let (taken, progress) = handshake.feed(scratch, inbox.len() - window, out);
    inbox.consume(taken);
    (taken, progress)
}

/// Moves what the inbox has of a payload to its place.
#[inline]
fn fill(filling: &mut Filling, inbox: &mut Inbox) {
    while filling.missing() > 0 && inbox.len() > 0 {
        let place = filling.place();
        let take = place.len().min(inbox.len());
        inbox.take_into(&place, 0, take);
        filling.filled(take);
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Gone => f.write_str("the client has gone"),
            Ended::Session(reason) => reason.fmt(f),
            Ended::Tls(error) => write!(f, "TLS: {error}"),
            Ended::TooSlow => f.write_str("the client took too long over the handshake"),
            Ended::Shutdown => f.write_str("the server is going down"),
        }
    }
}

#[cfg(test)]
mod tests {
    use blockwork_memory::Pool;

    use super::*;
    use crate::nbd::exports::Exports;
    use crate::nbd::exports::tests::export;

    #[test]
    fn a_handshake_copies_no_byte_twice_however_many_options_come_at_once() {
        const OPTIONS: usize = 1000;
        let option = |number: u32, data: &[u8]| {
            let len = u32::try_from(data.len()).unwrap();
            [b"IHAVEOPT", &number.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
        };
        let mut input = 3u32.to_be_bytes().to_vec();
        (0..OPTIONS).for_each(|n| input.extend(option(1 << 20, &[7; 40][..n % 40])));
        let exports = Exports::of(vec![export("d", 1 << 20)]).unwrap();
        let mut handshake = Handshake::new(exports, TlsState::Off, &mut Vec::new());
        let (pool, mut inbox, mut scratch) = (Pool::new(1 << 20), Inbox::new(), Vec::new());
        inbox.free(&pool);
        inbox.append(&input);
        let (mut copied, mut steps) = (0, 0);
        while inbox.len() > 0 {
            let (taken, progress) = step(&mut handshake, &mut inbox, &mut scratch, &mut Vec::new());
            assert!(taken > 0 && matches!(progress, Progress::More), "{progress:?}");
            (copied, steps) = (copied + scratch.len(), steps + 1);
        }
        assert_eq!(copied, input.len());
        assert!(steps <= 1 + 2 * OPTIONS, "{steps} steps");
    }
}
