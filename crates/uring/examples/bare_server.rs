//! The least that an NBD server on io_uring can be: what it reaches is what this machine lets any server of this shape
//! reach. No engine, no layers, no environment: a ring, one client at a time, 4 KiB reads and writes of one file with
//! O_DIRECT, all answers that are there in one send. `bench/run bound` measures it beside raw fio and `blockwork serve`: from
//! raw fio to here is the price of the socket and of the scheduler, from here to us is ours.
//!
//! Not a server for anything else: a request that it does not expect ends it with an error.
//!
//! ```text
//! bare_server FILE SOCKET [--portion N] [--answers N] [--spin]
//! bare_server --wake-up
//! ```
//!
//! - `--portion N`: hand N file operations to the kernel as soon as they wait, not all of a wake-up at its end.
//! - `--answers N`: begin to send when N answers are there, not at the end of a wake-up.
//! - `--spin`: never sleep while a client is connected.
//! - `--wake-up`: what it costs to wake a sleeping thread: two threads that pass a byte to and fro over a socket pair.
//!
//! Invariants: memory that the kernel may read or write belongs to [`Server`]'s boxes, whose contents stay where they are, and the ring is
//! dropped, with all its operations, only when the process ends.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use rustix::thread::{CpuSet, sched_setaffinity};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a request; no other size is served.
const BLOCK: usize = 4096;
/// Requests that may be under way.
const SLOTS: usize = 256;
const INBOX: usize = 256 << 10;
const REQUEST: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// What a completion is of; below, the slot of a file operation.
const RECV: u64 = 1 << 32;
const SEND: u64 = 2 << 32;

#[derive(Clone, Copy)]
struct Variant {
    portion: usize,
    answers: usize,
    spin: bool,
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

/// A request from its arrival until its answer has been sent.
#[derive(Clone, Copy, Default)]
struct Request {
    cookie: [u8; 8],
    is_read: bool,
}

struct Server {
    ring: IoUring,
    variant: Variant,
    file: File,
    client: RawFd,
    blocks: Box<[Block]>,
    requests: Box<[Request]>,
    free: Vec<usize>,
    inbox: Box<[u8]>,
    filled: usize,
    receiving: bool,
    /// Slots whose answers wait for the send under way to end.
    answers: Vec<usize>,
    /// Slots whose answers are in the send under way, the heads of those, and what they make as a vector.
    sending: Vec<usize>,
    heads: Box<[[u8; 16]]>,
    vector: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
    unsent: usize,
}

impl Server {
    fn new(file: File, variant: Variant) -> Outcome<Server> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(1024)?;
        // SAFETY: all zeroes is a valid `struct msghdr`.
        let message = Box::new(unsafe { std::mem::zeroed() });
        Ok(Server {
            ring,
            variant,
            file,
            client: -1,
            blocks: vec![Block([0; BLOCK]); SLOTS].into(),
            requests: vec![Request::default(); SLOTS].into(),
            free: (0..SLOTS).collect(),
            inbox: vec![0; INBOX].into(),
            filled: 0,
            receiving: false,
            answers: Vec::with_capacity(SLOTS),
            sending: Vec::with_capacity(SLOTS),
            heads: vec![[0; 16]; SLOTS].into(),
            vector: Vec::with_capacity(2 * SLOTS),
            message,
            unsent: 0,
        })
    }

    /// Serves one client until it goes.
    fn serve(&mut self, client: &UnixStream) -> Outcome<()> {
        self.client = client.as_raw_fd();
        self.filled = 0;
        let mut there = Vec::new();
        loop {
            if !self.receiving {
                self.receive()?;
            }
            if self.sending.is_empty() && !self.answers.is_empty() {
                self.send()?;
            }
            self.wait()?;
            there.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
            for (what, result) in there.drain(..) {
                match what {
                    RECV if result <= 0 => return self.finish(),
                    RECV => self.received(usize::try_from(result)?)?,
                    SEND => self.sent(usize::try_from(result)?)?,
                    slot => self.completed(usize::try_from(slot)?, result)?,
                }
            }
        }
    }

    /// Sleeps, or spins, until there is a completion.
    fn wait(&mut self) -> Outcome<()> {
        if !self.variant.spin {
            self.ring.submit_and_wait(1)?;
            return Ok(());
        }
        loop {
            let queue = self.ring.submission();
            let (waiting, run) = (u32::try_from(queue.len())?, queue.taskrun());
            drop(queue);
            if waiting > 0 || run {
                // SAFETY: there are no arguments; entries are sound by the promise of `push`.
                unsafe { self.ring.submitter().enter::<()>(waiting, 0, EnterFlags::GETEVENTS.bits(), None) }?;
            }
            if !self.ring.completion().is_empty() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> Outcome<()> {
        // SAFETY: by the invariant of the module. A slot's block is given to one operation at a time, the unfilled
        // part of the inbox to the one receive, heads and vector to the one send.
        unsafe { self.ring.submission().push(entry) }?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        let room = &mut self.inbox[self.filled..];
        let entry = opcode::Recv::new(types::Fd(self.client), room.as_mut_ptr(), u32::try_from(room.len())?);
        self.receiving = true;
        self.push(&entry.build().user_data(RECV))
    }

    fn received(&mut self, bytes: usize) -> Outcome<()> {
        self.receiving = false;
        self.filled += bytes;
        let mut at = 0;
        while let Some(taken) = self.request(at)? {
            at += taken;
        }
        self.inbox.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// Starts the request at `at` of the inbox, if it is there as a whole; gives its length.
    fn request(&mut self, at: usize) -> Outcome<Option<usize>> {
        let bytes = &self.inbox[at..self.filled];
        let Some((head, rest)) = bytes.split_at_checked(REQUEST) else { return Ok(None) };
        let kind = u16::from_be_bytes(head[6..8].try_into()?);
        let offset = u64::from_be_bytes(head[16..24].try_into()?);
        let len = usize::try_from(u32::from_be_bytes(head[24..28].try_into()?))?;
        if head[..4] != REQUEST_MAGIC.to_be_bytes() || kind > 2 || (kind < 2 && len != BLOCK) {
            return Err(
                format!("request {kind} of {len} bytes: only reads and writes of {BLOCK} here").into()
            );
        }
        let payload = if kind == 1 { BLOCK } else { 0 };
        if rest.len() < payload {
            return Ok(None);
        }
        if kind == 2 {
            return Ok(Some(REQUEST)); // the client goes: its end of the stream says so again
        }
        let slot = self.free.pop().ok_or("more requests under way than there are slots")?;
        self.requests[slot] = Request { cookie: head[8..16].try_into()?, is_read: kind == 0 };
        let (file, block) = (types::Fd(self.file.as_raw_fd()), &mut self.blocks[slot].0);
        let entry = if kind == 0 {
            opcode::Read::new(file, block.as_mut_ptr(), BLOCK as u32).offset(offset).build()
        } else {
            block.copy_from_slice(&rest[..BLOCK]);
            opcode::Write::new(file, block.as_ptr(), BLOCK as u32).offset(offset).build()
        };
        self.push(&entry.user_data(slot as u64))?;
        if self.ring.submission().len() >= self.variant.portion {
            self.ring.submit()?;
        }
        Ok(Some(REQUEST + payload))
    }

    fn completed(&mut self, slot: usize, result: i32) -> Outcome<()> {
        if usize::try_from(result) != Ok(BLOCK) {
            return Err(format!("{result} from the file, {BLOCK} expected").into());
        }
        self.answers.push(slot);
        if self.sending.is_empty() && self.answers.len() >= self.variant.answers {
            self.send()?;
            self.ring.submit()?;
        }
        Ok(())
    }

    /// Sends all answers that are there.
    fn send(&mut self) -> Outcome<()> {
        std::mem::swap(&mut self.answers, &mut self.sending);
        self.vector.clear();
        for (&slot, head) in self.sending.iter().zip(&mut self.heads) {
            let request = self.requests[slot];
            head[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
            head[8..].copy_from_slice(&request.cookie);
            self.vector.push(libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() });
            if request.is_read {
                let block = &mut self.blocks[slot].0;
                self.vector.push(libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: BLOCK });
            }
        }
        self.unsent = self.vector.iter().map(|part| part.iov_len).sum();
        self.message.msg_iov = self.vector.as_mut_ptr();
        self.message.msg_iovlen = self.vector.len();
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32;
        let entry = opcode::SendMsg::new(types::Fd(self.client), &raw const *self.message).flags(flags);
        self.push(&entry.build().user_data(SEND))
    }

    fn sent(&mut self, bytes: usize) -> Outcome<()> {
        if bytes != self.unsent {
            return Err(format!("{bytes} of {} bytes sent", self.unsent).into());
        }
        self.free.append(&mut self.sending);
        Ok(())
    }

    /// The client has gone: waits for what it left behind.
    fn finish(&mut self) -> Outcome<()> {
        self.receiving = false;
        self.free.append(&mut self.answers);
        while self.free.len() < SLOTS {
            self.ring.submit_and_wait(1)?;
            let there: Vec<u64> = self.ring.completion().map(|entry| entry.user_data()).collect();
            for what in there {
                match what {
                    SEND => self.free.append(&mut self.sending),
                    slot => self.free.push(usize::try_from(slot)?),
                }
            }
        }
        Ok(())
    }
}

/// The handshake, as far as a client of fixed newstyle with OPT_GO needs it; every other option is refused.
fn handshake(client: &mut UnixStream, bytes: u64) -> Outcome<()> {
    const I_HAVE_OPT: &[u8] = b"IHAVEOPT";
    const GO: u32 = 7;
    client.write_all(&[b"NBDMAGIC", I_HAVE_OPT, &[0, 3]].concat())?;
    client.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; 16];
        client.read_exact(&mut head)?;
        let option = u32::from_be_bytes(head[8..12].try_into()?);
        let len = u32::from_be_bytes(head[12..].try_into()?);
        std::io::copy(&mut Read::take(&mut *client, len.into()), &mut std::io::sink())?;
        let mut reply = |kind: u32, data: &[u8]| {
            let numbers = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
            client.write_all(&[&0x0003_e889_0455_65a9_u64.to_be_bytes(), &numbers[..], data].concat())
        };
        if option == GO {
            // NBD_INFO_EXPORT: the size, and NBD_FLAG_HAS_FLAGS.
            reply(3, &[&[0, 0], &bytes.to_be_bytes()[..], &[0, 1]].concat())?;
            reply(1, &[])?;
            return Ok(());
        }
        reply((1 << 31) | 1, &[])?;
    }
}

fn serve(path: &str, socket: &str, variant: Variant) -> Outcome<()> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let bytes = file.metadata()?.len();
    let listener = UnixListener::bind(socket)?;
    let mut server = Server::new(file, variant)?;
    loop {
        let (mut client, _) = listener.accept()?;
        if handshake(&mut client, bytes).is_ok() {
            server.serve(&client)?;
        }
    }
}

/// Mean time for a byte to reach a thread that sleeps, or spins, on the other end of a socket pair; microseconds.
fn passing(rounds: u32, processors: [usize; 2], spin: bool) -> Outcome<f64> {
    let (mut here, mut there) = UnixStream::pair()?;
    [&here, &there].map(|end| end.set_nonblocking(spin)).into_iter().collect::<Result<(), _>>()?;
    let other = std::thread::spawn(move || -> std::io::Result<()> {
        run_on(processors[1])?;
        (0..rounds).try_for_each(|_| {
            let byte = get(&mut there)?;
            there.write_all(&byte)
        })
    });
    run_on(processors[0])?;
    let start = Instant::now();
    for _ in 0..rounds {
        here.write_all(&[1])?;
        get(&mut here)?;
    }
    let took = start.elapsed();
    other.join().map_err(|_| "the other thread has failed")??;
    Ok(took.as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
}

fn get(from: &mut UnixStream) -> std::io::Result<[u8; 1]> {
    let mut byte = [0];
    loop {
        match from.read_exact(&mut byte) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            other => return other.map(|()| byte),
        }
    }
}

fn run_on(processor: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

fn wake_up() -> Outcome<()> {
    const ROUNDS: u32 = 20_000;
    let idle = passing(ROUNDS, [0, 1], false)?;
    let spinning = passing(ROUNDS, [0, 1], true)?;
    let same = passing(ROUNDS, [0, 0], false)?;
    println!("{{\"idle_us\": {idle:.2}, \"spinning_us\": {spinning:.2}, \"same_processor_us\": {same:.2}}}");
    Ok(())
}

fn main() -> Outcome<()> {
    let usage = "bare_server FILE SOCKET [--portion N] [--answers N] [--spin] | bare_server --wake-up";
    let mut arguments = std::env::args().skip(1);
    let (mut places, mut variant) =
        (Vec::new(), Variant { portion: usize::MAX, answers: usize::MAX, spin: false });
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--wake-up" => return wake_up(),
            "--spin" => variant.spin = true,
            "--portion" => variant.portion = arguments.next().ok_or(usage)?.parse()?,
            "--answers" => variant.answers = arguments.next().ok_or(usage)?.parse()?,
            _ => places.push(argument),
        }
    }
    let [file, socket] = &places[..] else { return Err(usage.into()) };
    serve(file, socket, variant)
}
