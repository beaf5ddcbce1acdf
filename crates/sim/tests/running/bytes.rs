//! What is on simulated devices, read without the code that is tested.

use std::io;

use blockwork_engine::FileId;
use blockwork_format::Source;
use blockwork_sim::World;

/// A device, or a part of one, as it would be read now.
pub struct Bytes<'a> {
    pub world: &'a World,
    pub device: FileId,
    /// Where the part begins, and how long it is.
    pub start: u64,
    pub sectors: u64,
}

impl Source for Bytes<'_> {
    fn size(&self) -> u64 {
        self.sectors * 512
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset + buf.len() as u64 > self.size() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (sector, piece) in (offset / 512..).zip(buf.chunks_mut(512)) {
            piece.copy_from_slice(&self.world.peek(self.device, self.start + sector)[..piece.len()]);
        }
        Ok(())
    }
}
