//! A device that reads as zeros and forgets what is written: for measuring everything but a device.

use std::sync::Arc;

use blockwork_engine::{
    Allocation, AtOnce, Env, Errno, Leaf, LeafIo, LeafShared, LeafSource, Limits, Op, Sector, Sectors,
    Submitted,
};
use blockwork_memory::Segment;

use crate::error::LeafError;
use crate::open::check_size;

/// Reads as zeros, forgets what is written.
pub struct NullSource {
    name: String,
    sectors: Sectors,
    limits: Limits,
    shared: Arc<LeafShared>,
}

struct NullLeaf;

impl NullSource {
    /// A null device of `bytes` bytes.
    pub fn new(bytes: u64, name: &str) -> Result<NullSource, LeafError> {
        let sectors = check_size(name, bytes)?;
        // The largest request of an ordinary disk, so that what is measured is merged as it would be there.
        let limits = Limits {
            max_sectors: Sectors(2560),
            discard_granularity: 512,
            hw_fixed: false,
            ..Limits::default()
        };
        Ok(NullSource { name: name.to_owned(), sectors, limits, shared: Arc::default() })
    }

    pub(crate) fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }
}

impl LeafSource for NullSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(NullLeaf)
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
    fn read_now(&self, _offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        into.fill(0);
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
}

impl AtOnce for NullLeaf {
    #[inline]
    fn transfer(&mut self, op: Op, _sector: Sector, data: &[Segment]) -> Result<(), Errno> {
        if op == Op::Read {
            // Not left as it is: a buffer holds some earlier request's data.
            data.iter().for_each(|segment| segment.fill(0));
        }
        Ok(())
    }
}

impl Leaf for NullLeaf {
    #[inline]
    fn submit(&mut self, _env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        Submitted::Now(self.transfer(io.op, io.sector, io.data))
    }

    fn at_once(&mut self) -> Option<&mut dyn AtOnce> {
        Some(self)
    }

    fn allocation(&mut self, _sector: Sector, nr: Sectors) -> Result<(Allocation, Sectors), Errno> {
        Ok((Allocation::Hole, nr))
    }
}
