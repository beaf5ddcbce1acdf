//! A file on a simulated NFS server, and a leaf on it that is driven by hand; and tests of writes that go together (`gather`),
//! and of servers and lines that take their time (`patience`).

mod gather;
mod patience;
mod said;
pub mod server;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use blockwork_engine::{
    Ended, Env, Errno, Flags, Leaf, LeafIo, LeafSource, Nanos, Op, Sector, Sectors, Submitted, Token, Wait,
};
use blockwork_format::nfs3::{Credential, Handle};
use blockwork_leaf::{NfsFile, NfsOptions, NfsSource, NfsVersion};
use blockwork_memory::{Buffer, Segment};
use blockwork_sim::{SimEnv, World};

use server::{FILE, Server};

/// Where the server is.
pub fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 2049))
}

fn version(options: &NfsOptions) -> NfsVersion {
    options.version.unwrap_or(NfsVersion::V3)
}

/// A source for the server's file, by version 3 if the options name none.
pub fn source(server: &Server, uncommitted_bytes: usize, options: &NfsOptions) -> NfsSource {
    let file = NfsFile {
        name: "nfs://sim/disk".to_owned(),
        address: address(),
        version: version(options),
        handle: Handle::new(FILE).unwrap(),
        credential: Credential::new("sim", 0, 0, &[]),
        bytes: server.size(),
        read_max: 64 << 10,
        write_max: 64 << 10,
        read_only: false,
        uncommitted_bytes,
    };
    NfsSource::new(&file, options).unwrap()
}

/// A server, and a leaf on its file.
pub struct Hand {
    pub server: Rc<RefCell<Server>>,
    env: SimEnv,
    leaf: Box<dyn Leaf>,
    source: NfsSource,
    version: NfsVersion,
    ended: Vec<Ended>,
}

impl Hand {
    pub fn new(server: Server, uncommitted_bytes: usize, options: &NfsOptions) -> Hand {
        let world = World::new(1);
        let source = source(&server, uncommitted_bytes, options);
        let leaf = source.open();
        let server = Rc::new(RefCell::new(server));
        world.add_host(address(), server.clone());
        Hand { server, env: world.env(), leaf, source, version: version(options), ended: Vec::new() }
    }

    pub fn version(&self) -> NfsVersion {
        self.version
    }

    /// Starts a request without waiting for it.
    pub fn start(&mut self, number: u64, op: Op, flags: Flags, sector: u64, data: &[Segment]) -> Submitted {
        let nr = Sectors::from_bytes_floor(blockwork_memory::bytes_in(data) as u64);
        let io = LeafIo {
            token: Token(number),
            op,
            flags,
            sector: Sector(sector),
            nr,
            data,
            fixed: false,
            alone: false,
        };
        self.leaf.submit(&mut self.env, io)
    }

    /// Tells the leaf that a batch ends, and lets time pass until so many requests have ended.
    pub fn wait(&mut self, count: usize) -> Vec<Ended> {
        self.leaf.submitted(&mut self.env);
        while self.ended.len() < count {
            self.step();
        }
        std::mem::take(&mut self.ended)
    }

    /// How many requests have ended that nobody has waited for.
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Tells the leaf that a batch ends, and lets time pass until the server has been asked what was not answered.
    pub fn lose_answer(&mut self, is_asked: impl Fn(&Server) -> bool) {
        self.server.borrow_mut().habits.lost = 1_000_000;
        self.pass(is_asked);
        self.server.borrow_mut().habits.lost = 0;
    }

    /// Tells the leaf that a batch ends, and lets time pass until that is so.
    pub fn pass(&mut self, until: impl Fn(&Server) -> bool) {
        self.leaf.submitted(&mut self.env);
        while !until(&self.server.borrow()) {
            self.step();
        }
    }

    /// Tells the leaf that a batch ends, and lets so much time pass.
    pub fn pass_time(&mut self, time: Nanos) {
        let until = self.env.now() + time;
        self.leaf.submitted(&mut self.env);
        while self.env.now() < until {
            self.step();
        }
    }

    /// Lets time pass until something happens.
    fn step(&mut self) {
        let mut completions = Vec::new();
        self.env.wait(Wait::Until(None), &mut completions);
        for completion in completions.drain(..) {
            let local = (completion.token.0 & 0xffff_ffff) as u32;
            self.leaf.event(&mut self.env, local, completion, &mut self.ended);
        }
    }

    fn one(&mut self, op: Op, flags: Flags, sector: u64, data: &[Segment]) -> Result<u32, Errno> {
        match self.start(1, op, flags, sector, data) {
            Submitted::Now(result) => result.map(|()| 0),
            Submitted::Started => self.wait(1)[0].result,
        }
    }

    pub fn write(&mut self, flags: Flags, sector: u64, data: &[Segment]) -> Result<u32, Errno> {
        self.one(Op::Write, flags, sector, data)
    }

    /// In its turn, as a queue's.
    pub fn flush(&mut self) -> Result<u32, Errno> {
        let _turn = loop {
            match self.source.shared().try_flush_turn() {
                Some(turn) => break turn,
                None => self.step(),
            }
        };
        self.one(Op::Flush, Flags::NONE, 0, &[])
    }

    /// Whether what was written is lost, so that nothing is written any more.
    pub fn has_failed(&self) -> bool {
        self.source.shared().has_failed()
    }

    pub fn read(&mut self, sector: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let data = filled(bytes, 0xee);
        self.one(Op::Read, Flags::NONE, sector, std::slice::from_ref(&data))?;
        let mut out = vec![0; bytes];
        data.read_at(0, &mut out);
        Ok(out)
    }
}

/// Memory full of one value.
pub fn filled(bytes: usize, value: u8) -> Segment {
    let segment = Segment::new(Buffer::new(bytes), 0, bytes);
    segment.fill(value);
    segment
}
