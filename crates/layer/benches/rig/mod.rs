//! What the benches of the engine share: leaves, an environment in which nothing happens, and an allocator
//! that counts.
//!
//! Not of this crate only: the export crate's benches take it too.

#![allow(dead_code, reason = "no bench uses all of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use blockwork_engine::*;

/// Hands everything to the system's allocator, and counts.
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// How often memory was allocated, since the program began.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

// SAFETY: everything is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a leaf of memory holds; all who have opened it share it.
type Content = Arc<Mutex<Vec<u8>>>;

/// What becomes of an I/O on a leaf.
#[derive(Clone)]
enum Does {
    /// It is done at once; no data is touched.
    Nothing,
    /// It is done at once, on that.
    Memory(Content),
    /// The environment is asked to do it.
    Environment,
}

/// A leaf.
pub struct RigLeaf {
    does: Does,
    sectors: Sectors,
    limits: Limits,
    shared: Arc<LeafShared>,
}

impl RigLeaf {
    fn new(does: Does, sectors: Sectors, limits: Limits) -> RigLeaf {
        RigLeaf { does, sectors, limits, shared: Arc::default() }
    }

    /// One that completes at once, and touches no data.
    pub fn null(sectors: Sectors, limits: Limits) -> RigLeaf {
        RigLeaf::new(Does::Nothing, sectors, limits)
    }

    /// One that completes at once, and holds that.
    pub fn memory(bytes: Vec<u8>, limits: Limits) -> RigLeaf {
        let sectors = Sectors(bytes.len() as u64 / SECTOR);
        RigLeaf::new(Does::Memory(Arc::new(Mutex::new(bytes))), sectors, limits)
    }

    /// A file of the environment's: reads and writes only.
    pub fn file(sectors: Sectors, limits: Limits) -> RigLeaf {
        RigLeaf::new(Does::Environment, sectors, limits)
    }
}

impl LeafSource for RigLeaf {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(Handle(self.does.clone()))
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn name(&self) -> &str {
        "bench"
    }
    fn read_now(&self, _offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        into.fill(0);
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
}

struct Handle(Does);

impl Leaf for Handle {
    fn submit(&mut self, env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        if !matches!(self.0, Does::Environment) {
            return Submitted::Now(AtOnce::transfer(self, io.op, io.sector, io.data));
        }
        let kind = match io.op {
            Op::Read => FileOpKind::Read,
            _ => FileOpKind::Write { dsync: false },
        };
        let (offset, len) = (io.sector.bytes(), io.nr.bytes());
        let file = FileId(0);
        env.start(io.token, FileOp { file, kind, offset, len, data: io.data, fixed: io.fixed });
        Submitted::Started
    }
    fn at_once(&mut self) -> Option<&mut dyn AtOnce> {
        match self.0 {
            Does::Nothing | Does::Memory(_) => Some(self),
            Does::Environment => None,
        }
    }
}

impl AtOnce for Handle {
    #[inline(always)]
    fn transfer(&mut self, op: Op, sector: Sector, data: &[blockwork_memory::Segment]) -> Result<(), Errno> {
        if let Does::Memory(content) = &self.0 {
            let mut bytes = content.lock().expect("nothing panics while it is held");
            let mut at = sector.bytes() as usize;
            for segment in data {
                match op {
                    Op::Read => segment.write_at(0, &bytes[at..at + segment.len()]),
                    _ => segment.read_at(0, &mut bytes[at..at + segment.len()]),
                }
                at += segment.len();
            }
        }
        Ok(())
    }
}

/// An environment in which no time passes and nothing comes in.
pub struct NoEnv;

/// Nobody to be woken.
pub struct Deaf;

impl Notify for Deaf {
    fn notify(&self) {}
}

impl Env for NoEnv {
    fn now(&self) -> Nanos {
        Nanos(1)
    }
    fn random(&mut self) -> u64 {
        4
    }
    fn start(&mut self, _token: Token, _op: FileOp<'_>) {}
    fn wait(&mut self, _wait: Wait, _out: &mut Vec<Completion>) {}
    fn notifier(&self) -> Arc<dyn Notify> {
        Arc::new(Deaf)
    }
}

/// The number behind an option of the command line.
pub fn option(name: &str) -> Option<u64> {
    std::env::args().skip_while(|arg| arg != name).nth(1)?.parse().ok()
}
