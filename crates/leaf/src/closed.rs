//! A disk that was closed while its number is still in use: what is asked of it fails.

use std::io;
use std::sync::Arc;

use blockwork_engine::{
    Env, Errno, Leaf, LeafIo, LeafShared, LeafSource, Limits, LockSnapshot, Sectors, Submitted,
};

/// Stands where a disk was that was closed. It holds nothing of that disk, and does no I/O.
pub struct ClosedSource {
    name: String,
    sectors: Sectors,
    limits: Limits,
    shared: Arc<LeafShared>,
}

struct ClosedLeaf;

impl ClosedSource {
    /// In the place of that one.
    pub fn of(open: &dyn LeafSource) -> ClosedSource {
        ClosedSource {
            name: open.name().to_owned(),
            sectors: open.sectors(),
            limits: open.limits().clone(),
            shared: Arc::default(),
        }
    }
}

impl LeafSource for ClosedSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(ClosedLeaf)
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn read_now(&self, _offset: u64, _into: &mut [u8]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(Errno::EIO.0))
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
    /// Nobody waits for anything here.
    fn locks(&self) -> Vec<LockSnapshot> {
        Vec::new()
    }
}

impl Leaf for ClosedLeaf {
    fn submit(&mut self, _env: &mut dyn Env, _io: LeafIo<'_>) -> Submitted {
        Submitted::Now(Err(Errno::EIO))
    }
}
