//! One connection of a worker to the server: made when there is something to ask, and again when it is lost.
//!
//! What was asked on a connection that is lost is asked again, under its xid, on the next one, which comes from the same port: by both
//! a server with a reply cache knows what it has done, or is still about to do, and does it once. The first attempt is made at once,
//! later ones after pauses; of those that fail every other one from another port, since something on the way may keep the old one.

use std::collections::VecDeque;

use blockwork_engine::{Env, Nanos, StreamId, Token};
use blockwork_memory::{Pool, Segment, bytes_in};

use super::Shared;
use super::call::{Calls, Sent};
use super::incoming::Incoming;
use blockwork_format::nfs3::{ReadReply, Verifier};

/// Received at once.
const RECEIVE_BYTES: usize = 256 << 10;
/// Segments of one send at most, and bytes of which the last call may exceed.
const SEND_SEGMENTS_MAX: usize = 1024;
const SEND_BYTES: usize = 4 << 20;
/// Segments of a call's data at most: its head is one more.
pub(super) const CALL_SEGMENTS_MAX: u32 = SEND_SEGMENTS_MAX as u32 - 1;
/// Pauses between attempts to connect: doubled from the first on.
const PAUSE_FIRST: Nanos = Nanos::millis(100);
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// Operations of the leaf's own, in the tokens: what, on which connection, in which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    Connected,
    Sent,
    Received,
    /// The pause before the next attempt is over.
    Retry,
    /// Time to look for calls that are not answered.
    Alarm,
    /// Time to ask again where the server asked for patience.
    Patience,
    /// Time to look whether other workers' stable writes have ended.
    Others,
}

const HAPPENINGS: [Happening; 7] = [
    Happening::Connected,
    Happening::Sent,
    Happening::Received,
    Happening::Retry,
    Happening::Alarm,
    Happening::Patience,
    Happening::Others,
];
const LIFE_BITS: u32 = 24;
const CONNECTION_BITS: u32 = 5;

/// Packs them into what a token takes along.
pub(super) fn local(what: Happening, connection: usize, life: u32) -> u32 {
    let number = HAPPENINGS.iter().position(|happening| *happening == what).expect("one of them");
    let pack = |n: usize| u32::try_from(n).expect("few");
    (pack(number) << CONNECTION_BITS | pack(connection)) << LIFE_BITS | life & ((1 << LIFE_BITS) - 1)
}

/// And out of it.
pub(super) fn parts(local: u32) -> (Happening, usize, u32) {
    let (life, rest) = (local & ((1 << LIFE_BITS) - 1), (local >> LIFE_BITS) as usize);
    (HAPPENINGS[rest >> CONNECTION_BITS], rest & ((1 << CONNECTION_BITS) - 1), life)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down,
    /// No attempt until then.
    Paused,
    Connecting(StreamId),
    Up(StreamId),
}

pub(super) struct Connection {
    number: usize,
    state: State,
    /// Completions of earlier lives are of no interest.
    life: u32,
    /// Where the last one that was made came from.
    port: Option<u16>,
    /// The last attempt was to come from there, and has failed.
    elsewhere: bool,
    /// The last attempt ended before it began.
    has_no_socket: bool,
    /// Calls to send.
    queue: VecDeque<u32>,
    sending: bool,
    /// Where it is received to.
    received: Option<Segment>,
    pub(super) incoming: Incoming,
    pub(super) reading: Option<(u32, ReadReply)>,
    /// Attempts since the server has answered last.
    attempts: u32,
    /// Since when it is in its state.
    since: Nanos,
    /// Bytes that were given to it, and how many of them were seen to have arrived.
    given: u64,
    arrived: u64,
    /// When that was sent which was answered last, and when it was answered.
    progress: (Nanos, Nanos),
    /// The life of the server at its other end, if that has told it.
    pub(super) heard: Option<Verifier>,
    /// What the calls weigh that wait for an answer, sent or not.
    pub(super) load: u32,
    /// How many writes they have of those that go together with others.
    pub(super) gathered: u32,
}

impl Connection {
    pub(super) fn new(number: usize) -> Connection {
        Connection {
            number,
            state: State::Down,
            life: 0,
            port: None,
            elsewhere: false,
            has_no_socket: false,
            queue: VecDeque::new(),
            sending: false,
            received: None,
            incoming: Incoming::default(),
            reading: None,
            attempts: 0,
            since: Nanos(0),
            given: 0,
            arrived: 0,
            progress: (Nanos(0), Nanos(0)),
            heard: None,
            load: 0,
            gathered: 0,
        }
    }

    /// Whether this completion is of this life.
    pub(super) fn lives(&self, life: u32) -> bool {
        self.life & ((1 << LIFE_BITS) - 1) == life
    }

    fn token(&self, token: Token, what: Happening) -> Token {
        token.of_leaf(local(what, self.number, self.life))
    }

    /// A call waits to be sent.
    pub(super) fn enqueue(&mut self, xid: u32) {
        self.queue.push_back(xid);
    }

    /// Whether it sends a message as soon as it is pumped.
    pub(super) fn has_something_to_send(&self) -> bool {
        !self.queue.is_empty() && !self.sending
    }

    /// A call is not wanted any more.
    pub(super) fn forget(&mut self, xid: u32) {
        self.queue.retain(|queued| *queued != xid);
    }

    /// Does what can be done for the queue now.
    pub(super) fn pump(&mut self, env: &mut dyn Env, token: Token, shared: &Shared, calls: &mut Calls) {
        if self.queue.is_empty() {
            return;
        }
        match self.state {
            State::Up(stream) if !self.sending => self.send(env, token, stream, calls),
            State::Down => self.connect(env, token, shared),
            _ => {}
        }
    }

    fn connect(&mut self, env: &mut dyn Env, token: Token, shared: &Shared) {
        self.since = env.now();
        self.attempts += 1;
        self.life = self.life.wrapping_add(1);
        let token_of_connect = self.token(token, Happening::Connected);
        let Some(network) = env.network() else { return };
        let (name, to) = (&shared.name, shared.address);
        match network.connect(token_of_connect, to, self.port.filter(|_| !self.elsewhere)) {
            Ok(stream) => {
                shared.sockets.had(name, to, &mut self.has_no_socket);
                self.state = State::Connecting(stream);
            }
            Err(errno) => {
                shared.sockets.refused(name, to, errno, &mut self.has_no_socket);
                self.pause(env, token);
            }
        }
    }

    fn send(&mut self, env: &mut dyn Env, token: Token, stream: StreamId, calls: &mut Calls) {
        let now = env.now();
        let mut data: Vec<Segment> = Vec::with_capacity(2 * self.queue.len());
        let mut bytes = 0;
        while let Some(xid) = self.queue.front() {
            let call = calls.get(*xid).expect("what is queued is under way");
            let message = call.message();
            assert!(message.len() <= SEND_SEGMENTS_MAX, "a call of {} segments", message.len());
            if bytes >= SEND_BYTES || data.len() + message.len() > SEND_SEGMENTS_MAX {
                break;
            }
            data.extend_from_slice(message);
            bytes += bytes_in(message);
            call.sent = Some(Sent { at: now, end: self.given + bytes as u64, moved: now });
            self.queue.pop_front();
        }
        self.given += bytes as u64;
        self.sending = true;
        let token = self.token(token, Happening::Sent);
        if let Some(network) = env.network() {
            network.send(token, stream, &data);
        }
    }

    /// The connection has been made.
    pub(super) fn connected(&mut self, env: &mut dyn Env, token: Token, pool: &Pool) {
        let State::Connecting(stream) = self.state else { return };
        self.state = State::Up(stream);
        self.elsewhere = false;
        self.since = env.now();
        (self.given, self.arrived) = (0, 0);
        self.incoming = Incoming::default();
        self.reading = None;
        // A new one: the kernel may still write to that of the life before.
        self.received = Some(Segment::new(pool.get(RECEIVE_BYTES), 0, RECEIVE_BYTES));
        self.receive(env, token);
    }

    /// Waits for the next bytes.
    pub(super) fn receive(&mut self, env: &mut dyn Env, token: Token) {
        let token = self.token(token, Happening::Received);
        if let (State::Up(stream), Some(into), Some(network)) = (self.state, &self.received, env.network()) {
            network.receive(token, stream, into.clone());
        }
    }

    /// What was received.
    pub(super) fn received(&self, bytes: u32) -> Segment {
        self.received.as_ref().expect("a connection that is up receives").slice(0, bytes as usize)
    }

    /// A send has ended, of so many bytes.
    pub(super) fn sent(&mut self) {
        self.sending = false;
    }

    /// The server has answered what was sent then.
    pub(super) fn answered(&mut self, sent: Nanos, now: Nanos) {
        self.attempts = 0;
        self.progress = (sent, now);
    }

    /// Looks how much of what was sent has arrived: the time of a call does not begin before the last of it has.
    pub(super) fn look_at_line(&mut self, env: &mut dyn Env, calls: &mut Calls) {
        let State::Up(stream) = self.state else { return };
        let now = env.now();
        let Some(arrived) = env.network().and_then(|network| network.arrived(stream)) else { return };
        if arrived > self.arrived {
            let sent = calls.on(self.number).filter_map(|(_, call)| call.sent.as_mut());
            sent.filter(|sent| sent.end > self.arrived).for_each(|sent| sent.moved = now);
            self.arrived = arrived;
        }
    }

    /// Since when it waits to be connected, or for an answer to what was sent first. While that moves, or it is the turn of what went with
    /// it, a slow line or server is getting there: each answer counts. One to what was sent later tells nothing of a call that was dropped.
    pub(super) fn waits_since(&self, calls: &mut Calls) -> Option<Nanos> {
        match self.state {
            State::Connecting(_) => Some(self.since),
            State::Up(_) => {
                let sent = calls.on(self.number).filter_map(|(_, call)| call.sent);
                let first = sent.min_by_key(|sent| (sent.at, sent.end))?;
                let (sent, answered) = self.progress;
                Some(if sent <= first.at { first.moved.max(answered) } else { first.moved })
            }
            State::Down | State::Paused => None,
        }
    }

    /// The connection is of no use any more: what was asked on it will be asked again on the next.
    pub(super) fn lose(&mut self, env: &mut dyn Env, token: Token, calls: &mut Calls) {
        self.close(env);
        self.life = self.life.wrapping_add(1);
        self.sending = false;
        self.received = None;
        self.heard = None;
        let unanswered = calls.on(self.number).filter_map(|(xid, call)| {
            let was_sent = call.sent.take().is_some();
            call.is_repeated |= was_sent;
            was_sent.then_some(xid)
        });
        let mut queue: VecDeque<u32> = unanswered.collect();
        queue.append(&mut self.queue);
        self.queue = queue;
        if self.attempts > 0 {
            self.pause(env, token);
        }
    }

    fn close(&mut self, env: &mut dyn Env) {
        match (std::mem::replace(&mut self.state, State::Down), env.network()) {
            (State::Up(stream), Some(network)) => self.port = network.close(stream),
            (State::Connecting(stream), Some(network)) => {
                network.close(stream);
                self.elsewhere = !self.elsewhere;
            }
            _ => {}
        }
    }

    fn pause(&mut self, env: &mut dyn Env, token: Token) {
        self.state = State::Paused;
        let pause = Nanos(PAUSE_FIRST.0 << self.attempts.min(PAUSE_DOUBLINGS_MAX));
        let token = self.token(token, Happening::Retry);
        if let Some(network) = env.network() {
            network.timer(token, pause);
        }
    }

    /// The pause is over.
    pub(super) fn retry(&mut self) {
        self.state = State::Down;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_token_takes_along_comes_back() {
        for what in HAPPENINGS {
            for (connection, life) in [(0, 0), (15, 1), (31, 0xff_ffff)] {
                assert_eq!(parts(local(what, connection, life)), (what, connection, life));
            }
        }
    }
}
