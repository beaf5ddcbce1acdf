//! A hasher for tables by number: of blocks, of grants.
//!
//! The same way in each run. Who chooses the numbers can have them collide on purpose, and makes looking up slow by that; so tables are bounded
//! whose numbers come from outside.

use std::hash::Hasher;

/// Spreads numbers over a table.
#[derive(Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
    #[inline]
    fn write_u32(&mut self, nr: u32) {
        self.write_u64(nr.into());
    }
    #[inline]
    fn write_u64(&mut self, nr: u64) {
        let mixed = (self.0 ^ nr).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
