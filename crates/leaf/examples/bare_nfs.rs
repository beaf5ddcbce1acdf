//! The least that a client of an NFS server can be: WRITEs of one size at scattered places of a file, from one piece of memory, some
//! under way on each of some connections, a COMMIT behind every so many of them, and nothing done with the answers but to see that they are
//! well. `bench/run nfs` runs it beside servers of NBD over NFS: what it reaches is what the NFS server lets any of them reach on this machine.
//!
//! ```text
//!   bare_nfs nfs://SERVER/PATH CONNECTIONS DEPTH BYTES COMMIT_EVERY SECONDS      # 0: no COMMIT. Prints one line of JSON
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use blockwork_engine::{Completion, Env, Network, StreamId, Token, Wait};
use blockwork_format::nfs3::{self, Credential, Handle, MARK_BYTES, Stable, decode_mark};
use blockwork_leaf::{NfsAddress, NfsFile};
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
}

struct Client {
    ring: Uring,
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
            let stream = Network::connect(&mut ring, token(number, CONNECTED), file.address)
                .map_err(|errno| errno.to_string())?;
            let into = Segment::new(Buffer::new(RECEIVE_BYTES), 0, RECEIVE_BYTES);
            let waiting = depth / connections;
            let (answers, commits) = (Vec::new(), Vec::new());
            made.push(Connection { stream, into, answers, waiting, sending: true, commits });
        }
        let data = Segment::new(Buffer::new(bytes), 0, bytes);
        let places = file.bytes / bytes as u64;
        let (credential, handle) = (file.credential, file.handle);
        let xid = (Env::random(&mut ring) >> 32) as u32;
        let connections = made;
        Ok(Client {
            ring,
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
                nfs3::commit_reply(message, result)?.map_err(|status| status.to_string())?;
                continue;
            }
            let written = nfs3::write_reply(message, result)?.map_err(|status| status.to_string())?;
            if written.count as usize != self.data.len() {
                return Err(format!("{} of {} bytes written", written.count, self.data.len()).into());
            }
            connection.waiting += 1;
            self.done += 1;
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
        for _ in 0..std::mem::take(&mut connection.waiting) {
            self.xid = self.xid.wrapping_add(1);
            let place = u64::from(self.xid).wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.places;
            let (offset, bytes) = (place * self.data.len() as u64, self.data.len() as u32);
            let head = nfs3::write(self.xid, &self.credential, &self.handle, offset, bytes, Stable::Unstable);
            message.push(segment(&head));
            message.push(self.data.clone());
            self.sent += 1;
            if self.commit_every > 0 && self.sent.is_multiple_of(self.commit_every) {
                self.xid = self.xid.wrapping_add(1);
                connection.commits.push(self.xid);
                message.push(segment(&nfs3::commit(self.xid, &self.credential, &self.handle)));
            }
        }
        connection.sending = true;
        Network::send(&mut self.ring, token(number, SENT), connection.stream, &message);
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
    println!("{{\"writes\": {}, \"seconds\": {seconds:.3}, \"mibps\": {mibps:.1}}}", client.done);
    Ok(())
}
