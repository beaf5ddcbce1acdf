//! Memory that O_DIRECT takes, for the few synchronous reads while a disk is opened or examined.

/// Alignment, bytes: enough for any device.
const ALIGNMENT: usize = 4096;

/// Bytes whose first one lies on a page boundary.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Aligned {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        assert!(start + len <= memory.len(), "a byte pointer can be aligned within one alignment");
        Aligned { memory, start, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}
