//! Memory that O_DIRECT takes, for the few synchronous reads while a disk is opened or examined.

/// Alignment, bytes: enough for any device.
const ALIGNMENT: usize = 4096;

/// Bytes whose first one lies on a page boundary (or a given distance behind one).
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zero bytes, `skew` bytes behind a page boundary.
    pub fn new(len: usize, skew: usize) -> Aligned {
        let memory = vec![0; len + skew + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT) + skew;
        assert!(start + len <= memory.len(), "a byte pointer can be aligned within one alignment");
        Aligned { memory, start, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}
