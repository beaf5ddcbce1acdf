//! A simulated network: machines that can be reached over TCP, and the connections to them.
//!
//! What a client sends arrives in order, after [`LATENCY`]; what a machine answers arrives when it says, cut into pieces of any
//! length. A connection that one end has closed carries nothing any more; what was under way is lost.
//!
//! Machines are the test's own ([`Host`]): a server that restarts, forgets, answers twice or not at all is one of theirs.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use blockwork_engine::{Completion, Errno, Nanos, StreamId, Token};
use blockwork_memory::{Segment, bytes_in};

use crate::random::Random;

/// From here to there.
pub(crate) const LATENCY: Nanos = Nanos::micros(50);
/// No connection comes from this port, nor from one below it.
const PORT_FIRST: u16 = 1023;

const ECONNREFUSED: Errno = Errno(111);
const EPIPE: Errno = Errno(32);

/// A machine that can be reached.
pub trait Host {
    /// Somebody connects, from that port; whether it lets him.
    fn connected(&mut self, stream: StreamId, port: u16) -> bool;
    /// Bytes have come from a client.
    fn received(&mut self, now: Nanos, stream: StreamId, bytes: &[u8]) -> Vec<Reaction>;
    /// The client has closed.
    fn closed(&mut self, stream: StreamId);
    /// What each byte to it takes, beside `LATENCY`.
    fn per_byte(&self) -> Nanos {
        Nanos(0)
    }
    /// How much has gone wrong there that explains why a client's I/O fails.
    fn faults(&self) -> u64 {
        0
    }
}

/// What a machine does after a while.
#[derive(Debug)]
pub struct Reaction {
    /// When, from now.
    pub after: Nanos,
    /// To which client.
    pub stream: StreamId,
    /// What to send; `None`: the connection is closed.
    pub bytes: Option<Vec<u8>>,
}

struct Stream {
    worker: usize,
    /// Where it comes from.
    port: u16,
    host: Rc<RefCell<dyn Host>>,
    /// It is connected, and neither end has closed it.
    open: bool,
    /// The client will not use it any more.
    given_up: bool,
    receiving: Option<(Token, Segment)>,
    inbox: VecDeque<u8>,
    /// Bytes that were sent, when the last of them arrives, and what each takes.
    sent: u64,
    arrives: Nanos,
    pace: Nanos,
}

/// What is on its way.
enum Arrival {
    Connect(StreamId, Token),
    ToHost(StreamId, Token, Vec<u8>),
    FromHost(StreamId, Option<Vec<u8>>),
}

/// What an arrival has led to.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Further arrivals: when from now, and their numbers.
    pub(crate) follows: Vec<(Nanos, u64)>,
    /// Completions, with their workers.
    pub(crate) completions: Vec<(usize, Completion)>,
}

/// All machines, and all connections to them.
pub(crate) struct Net {
    hosts: Vec<(SocketAddr, Rc<RefCell<dyn Host>>)>,
    streams: Vec<Stream>,
    arrivals: BTreeMap<u64, Arrival>,
    arrived: u64,
    random: Random,
}

fn completion(token: Token, result: Result<usize, Errno>) -> Completion {
    let result = result.map_or_else(|errno| -errno.0, |bytes| i32::try_from(bytes).expect("below 2 GiB"));
    Completion { token, result, flags: 0 }
}

impl Net {
    pub(crate) fn new(random: Random) -> Net {
        Net { hosts: Vec::new(), streams: Vec::new(), arrivals: BTreeMap::new(), arrived: 0, random }
    }

    pub(crate) fn add_host(&mut self, address: SocketAddr, host: Rc<RefCell<dyn Host>>) {
        self.hosts.push((address, host));
    }

    pub(crate) fn faults(&self) -> u64 {
        self.hosts.iter().map(|(_, host)| host.borrow().faults()).sum()
    }

    fn post(&mut self, arrival: Arrival) -> u64 {
        self.arrived += 1;
        self.arrivals.insert(self.arrived, arrival);
        self.arrived
    }

    fn stream(&mut self, id: StreamId) -> &mut Stream {
        &mut self.streams[id.0 as usize]
    }

    pub(crate) fn connect(
        &mut self,
        worker: usize,
        token: Token,
        to: SocketAddr,
        from: Option<u16>,
    ) -> (StreamId, u64) {
        let (_, host) =
            self.hosts.iter().find(|(address, _)| *address == to).expect("a machine of this world");
        let id = StreamId(u32::try_from(self.streams.len()).expect("few connections"));
        let (host, inbox) = (host.clone(), VecDeque::new());
        let port = from.unwrap_or_else(|| self.free_port());
        self.streams.push(Stream {
            worker,
            port,
            host,
            open: false,
            given_up: false,
            receiving: None,
            inbox,
            sent: 0,
            arrives: Nanos(0),
            pace: Nanos(0),
        });
        (id, self.post(Arrival::Connect(id, token)))
    }

    /// One that no connection has had.
    fn free_port(&self) -> u16 {
        let last = self.streams.iter().map(|stream| stream.port).max();
        last.unwrap_or(PORT_FIRST).checked_add(1).expect("few ports")
    }

    /// Returns when it arrives, under which number.
    pub(crate) fn send(&mut self, now: Nanos, token: Token, id: StreamId, data: &[Segment]) -> (Nanos, u64) {
        let mut bytes = vec![0; bytes_in(data)];
        let mut rest = &mut bytes[..];
        for segment in data {
            let (now, later) = rest.split_at_mut(segment.len());
            segment.read_at(0, now);
            rest = later;
        }
        let stream = self.stream(id);
        let pace = stream.host.borrow().per_byte();
        stream.sent += bytes.len() as u64;
        stream.pace = pace;
        stream.arrives = Nanos(now.0 + LATENCY.0 + bytes.len() as u64 * pace.0);
        (stream.arrives, self.post(Arrival::ToHost(id, token, bytes)))
    }

    /// How many of the bytes sent are there by now: one after the other.
    pub(crate) fn arrived(&mut self, now: Nanos, id: StreamId) -> u64 {
        let stream = self.stream(id);
        let missing = stream.arrives.since(now).0.checked_div(stream.pace.0).unwrap_or(0);
        stream.sent - missing.min(stream.sent)
    }

    pub(crate) fn receive(&mut self, token: Token, id: StreamId, into: Segment) -> Option<Completion> {
        let stream = self.stream(id);
        assert!(stream.receiving.is_none(), "one receive at a time");
        stream.receiving = Some((token, into));
        self.deliver(id)
    }

    /// Also returns the port that it came from.
    pub(crate) fn close(&mut self, id: StreamId) -> (u16, Option<Completion>) {
        let stream = self.stream(id);
        assert!(!std::mem::replace(&mut stream.given_up, true), "a stream is closed once");
        if std::mem::take(&mut stream.open) {
            let host = stream.host.clone();
            host.borrow_mut().closed(id);
        }
        let stream = self.stream(id);
        stream.inbox.clear();
        (stream.port, self.deliver(id))
    }

    /// Ends the receive that is under way, if there is something for it.
    fn deliver(&mut self, id: StreamId) -> Option<Completion> {
        let cut = self.random.bits();
        let stream = self.stream(id);
        let (_, into) = stream.receiving.as_ref()?;
        let most = into.len().min(stream.inbox.len());
        if most == 0 && stream.open {
            return None;
        }
        // Often all that is there, else any part of it.
        let bytes = if cut.is_multiple_of(4) && most > 1 { 1 + cut as usize % most } else { most };
        let (token, into) = stream.receiving.take().expect("looked at above");
        let taken: Vec<u8> = stream.inbox.drain(..bytes).collect();
        into.write_at(0, &taken);
        Some(completion(token, Ok(bytes)))
    }

    /// What `number` stands for arrives.
    pub(crate) fn arrive(&mut self, now: Nanos, number: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let arrival = self.arrivals.remove(&number).expect("everything arrives once");
        let (id, told, reactions) = match arrival {
            Arrival::Connect(id, token) => (id, Some(self.arrive_connect(id, token)), Vec::new()),
            Arrival::ToHost(id, token, bytes) => {
                let stream = self.stream(id);
                if stream.open {
                    let host = stream.host.clone();
                    let reactions = host.borrow_mut().received(now, id, &bytes);
                    (id, Some(completion(token, Ok(bytes.len()))), reactions)
                } else {
                    (id, Some(completion(token, Err(EPIPE))), Vec::new())
                }
            }
            Arrival::FromHost(id, bytes) => (id, self.arrive_back(id, bytes), Vec::new()),
        };
        let worker = self.stream(id).worker;
        outcome.completions.extend(told.map(|completion| (worker, completion)));
        for Reaction { after, stream, bytes } in reactions {
            let number = self.post(Arrival::FromHost(stream, bytes));
            outcome.follows.push((after, number));
        }
        outcome
    }

    fn arrive_connect(&mut self, id: StreamId, token: Token) -> Completion {
        let stream = self.stream(id);
        let host = stream.host.clone();
        let accepted = !stream.given_up && host.borrow_mut().connected(id, stream.port);
        self.stream(id).open = accepted;
        completion(token, if accepted { Ok(0) } else { Err(ECONNREFUSED) })
    }

    fn arrive_back(&mut self, id: StreamId, bytes: Option<Vec<u8>>) -> Option<Completion> {
        let stream = self.stream(id);
        if !stream.open {
            return None;
        }
        match bytes {
            Some(bytes) => stream.inbox.extend(bytes),
            None => stream.open = false,
        }
        self.deliver(id)
    }
}
