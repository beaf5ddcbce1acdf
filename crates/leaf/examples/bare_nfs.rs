//! The least that a client of an NFS server can be: WRITEs of one size at scattered places of a file, from one piece of memory, some
//! under way on each of some connections (in version 4 those of a connection that may be asked for at once in one call), a COMMIT behind every
//! so many of them, and nothing done with the answers but to see that they are well. `bench/run nfs` runs it beside servers of NBD over NFS: what it reaches is what the NFS server lets any of them reach on this machine.
//!
//! ```text
//!   bare_nfs nfs://SERVER/PATH CONNECTIONS DEPTH BYTES COMMIT_EVERY SECONDS      # 0: no COMMIT. Prints one line of JSON
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use blockwork_engine::{Completion, Env, Network, StreamId, Token, Wait};
use blockwork_format::nfs3::{self, Credential, Handle, MARK_BYTES, Stable, decode_mark};
use blockwork_format::nfs4::{self, Place, WRITES_MAX};
use blockwork_leaf::{NfsAddress, NfsFile, NfsVersion};
use blockwork_memory::{Buffer, Segment};
use blockwork_uring::{Uring, UringConfig};

type Outcome<T> = Result<T, Box<dyn Error>>;

const RECEIVE_BYTES: usize = 64 << 10;

/// What a completion is of: a connection's number times three, and one of these.
const CONNECTED: u64 = 0;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

struct Connection {
    stream: StreamId,
    into: Segment,
    /// Answers, as far as they are there.
    answers: Vec<u8>,
    /// Writes that wait to be sent.
    waiting: usize,
    sending: bool,
    /// COMMITs under way.
    commits: Vec<u32>,
    /// Calls of WRITEs under way, and how many each has.
    calls: Vec<(u32, usize)>,
}

struct Client {
    ring: Uring,
    version: NfsVersion,
    credential: Credential,
    handle: Handle,
    /// Places in the file, and bytes of each.
    places: u64,
    data: Segment,
    connections: Vec<Connection>,
    /// Of the call before; those of one run are not the next one's, which the server would take for the same calls.
    xid: u32,
    /// Writes that a COMMIT follows, and how many have been sent.
    commit_every: u64,
    sent: u64,
    done: u64,
}

impl Client {
    fn new(name: &str, connections: usize, depth: usize, bytes: usize, commit_every: u64) -> Outcome<Client> {
        let address = NfsAddress::parse(name.strip_prefix("nfs://").ok_or("expected nfs://SERVER/PATH")?)?;
        let file = NfsFile::find(name, &address, false)?;
        let mut ring = Uring::new(&UringConfig::default())?;
        let mut made = Vec::new();
        for number in 0..connections {
            let stream = Network::connect(&mut ring, token(number, CONNECTED), file.address, None)
                .map_err(|errno| errno.to_string())?;
            let into = Segment::new(Buffer::new(RECEIVE_BYTES), 0, RECEIVE_BYTES);
            let waiting = depth / connections;
            made.push(Connection {
                stream,
                into,
                answers: Vec::new(),
                waiting,
                sending: true,
                commits: Vec::new(),
                calls: Vec::new(),
            });
        }
        let data = Segment::new(Buffer::new(bytes), 0, bytes);
        let places = file.bytes / bytes as u64;
        let (credential, handle) = (file.credential, file.handle);
        let xid = (Env::random(&mut ring) >> 32) as u32;
        let connections = made;
        Ok(Client {
            ring,
            version: file.version,
            credential,
            handle,
            places,
            data,
            connections,
            xid,
            commit_every,
            sent: 0,
            done: 0,
        })
    }

    /// Seconds that all took which was answered.
    fn run(&mut self, time: Duration) -> Outcome<f64> {
        let mut there: Vec<Completion> = Vec::new();
        let began = Instant::now();
        while began.elapsed() < time {
            self.ring.wait(Wait::Until(None), &mut there);
            for completion in there.drain(..) {
                let bytes = completion.outcome().map_err(|errno| errno.to_string())? as usize;
                let (number, what) = ((completion.token.0 / 3) as usize, completion.token.0 % 3);
                match what {
                    CONNECTED => self.receive(number),
                    RECEIVED => self.received(number, bytes)?,
                    _ => {}
                }
                self.connections[number].sending &= what == RECEIVED;
            }
            (0..self.connections.len()).for_each(|number| self.send(number));
        }
        Ok(began.elapsed().as_secs_f64())
    }

    fn receive(&mut self, number: usize) {
        let Connection { stream, into, .. } = &self.connections[number];
        Network::receive(&mut self.ring, token(number, RECEIVED), *stream, into.clone());
    }

    fn received(&mut self, number: usize, bytes: usize) -> Outcome<()> {
        let connection = &mut self.connections[number];
        let start = connection.answers.len();
        connection.answers.resize(start + bytes, 0);
        connection.into.read_at(0, &mut connection.answers[start..]);
        if bytes == 0 {
            return Err("the server has closed the connection".into());
        }
        let mut at = 0;
        while let Some(mark) = connection.answers[at..].first_chunk::<MARK_BYTES>() {
            let len = decode_mark(*mark).0 as usize;
            let Some(message) = connection.answers.get(at + MARK_BYTES..at + MARK_BYTES + len) else { break };
            let result = nfs3::reply(message)?.outcome.map_err(|refusal| refusal.to_string())?;
            at += MARK_BYTES + len;
            let xid = nfs3::reply_xid(message).ok_or("an answer without an xid")?;
            if let Some(place) = connection.commits.iter().position(|commit| *commit == xid) {
                connection.commits.swap_remove(place);
                match self.version {
                    NfsVersion::V3 => nfs3::commit_reply(message, result)?,
                    NfsVersion::V4 => nfs4::commit_reply(message, result)?,
                }
                .map_err(|status| status.to_string())?;
                continue;
            }
            let place =
                connection.calls.iter().position(|call| call.0 == xid).ok_or("an answer to no call")?;
            let (_, asked) = connection.calls.swap_remove(place);
            let (done, stopped) = match self.version {
                NfsVersion::V3 => match nfs3::write_reply(message, result)? {
                    Ok(written) => (vec![written], None),
                    Err(status) => (Vec::new(), Some(status)),
                },
                NfsVersion::V4 => {
                    let reply = nfs4::writes_reply(message, result, asked)?;
                    (reply.done, reply.stopped)
                }
            };
            if let Some(status) = stopped {
                return Err(status.to_string().into());
            }
            if let Some(short) = done.iter().find(|written| written.count as usize != self.data.len()) {
                return Err(format!("{} of {} bytes written", short.count, self.data.len()).into());
            }
            connection.waiting += asked;
            self.done += asked as u64;
        }
        connection.answers.drain(..at);
        self.receive(number);
        Ok(())
    }

    /// Sends all that waits.
    fn send(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        if connection.sending || connection.waiting == 0 {
            return;
        }
        let mut message = Vec::with_capacity(2 * connection.waiting);
        let mut waiting = std::mem::take(&mut connection.waiting);
        while waiting > 0 {
            let asked = if self.version == NfsVersion::V4 { waiting.min(WRITES_MAX) } else { 1 };
            self.push_writes(number, asked, &mut message);
            waiting -= asked;
            let before = self.sent;
            self.sent += asked as u64;
            if self.commit_every > 0 && before / self.commit_every != self.sent / self.commit_every {
                self.push_commit(number, &mut message);
            }
        }
        let connection = &mut self.connections[number];
        connection.sending = true;
        Network::send(&mut self.ring, token(number, SENT), connection.stream, &message);
    }

    /// A call of so many WRITEs.
    fn push_writes(&mut self, number: usize, asked: usize, message: &mut Vec<Segment>) {
        self.xid = self.xid.wrapping_add(1);
        self.connections[number].calls.push((self.xid, asked));
        let (sent, places, count) = (self.sent, self.places, self.data.len() as u32);
        let place =
            |n: usize| (sent + n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % places * u64::from(count);
        match self.version {
            NfsVersion::V3 => {
                let stable = Stable::Unstable;
                let head = nfs3::write(self.xid, &self.credential, &self.handle, place(0), count, stable);
                message.extend([segment(&head), self.data.clone()]);
            }
            NfsVersion::V4 => {
                let places = (0..asked).map(|n| Place { offset: place(n), count });
                let heads = nfs4::writes(self.xid, &self.credential, &self.handle, Stable::Unstable, places);
                let all = segment(&heads.bytes);
                for head in heads.heads() {
                    message.extend([all.slice(head.start, head.len()), self.data.clone()]);
                }
            }
        }
    }

    fn push_commit(&mut self, number: usize, message: &mut Vec<Segment>) {
        self.xid = self.xid.wrapping_add(1);
        self.connections[number].commits.push(self.xid);
        let commit = match self.version {
            NfsVersion::V3 => nfs3::commit(self.xid, &self.credential, &self.handle),
            NfsVersion::V4 => nfs4::commit(self.xid, &self.credential, &self.handle),
        };
        message.push(segment(&commit));
    }
}

fn segment(bytes: &[u8]) -> Segment {
    let buffer = Buffer::new(bytes.len());
    buffer.write_at(0, bytes);
    Segment::new(buffer, 0, bytes.len())
}

fn token(number: usize, what: u64) -> Token {
    Token(number as u64 * 3 + what)
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, connections, depth, bytes, commit_every, seconds] = &args[..] else {
        return Err("bare_nfs nfs://SERVER/PATH CONNECTIONS DEPTH BYTES COMMIT_EVERY SECONDS".into());
    };
    let (connections, bytes) = (connections.parse()?, bytes.parse()?);
    let mut client = Client::new(name, connections, depth.parse()?, bytes, commit_every.parse()?)?;
    let seconds = client.run(Duration::from_secs_f64(seconds.parse()?))?;
    let mibps = client.done as f64 * bytes as f64 / seconds / f64::from(1 << 20);
    println!(
        "{{\"version\": \"{}\", \"writes\": {}, \"seconds\": {seconds:.3}, \"mibps\": {mibps:.1}}}",
        client.version, client.done
    );
    Ok(())
}
