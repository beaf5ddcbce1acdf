//! A range of a buffer, and lists of them: what a bio's data is.

use smallvec::SmallVec;

use crate::buffer::{Buffer, PAGE};

/// A range of a [`Buffer`], in bytes. Keeps the buffer alive.
#[derive(Clone)]
pub struct Segment {
    buffer: Buffer,
    /// The offset, and the length in the upper half: two words in all, which are handed on in registers. What is handed on by memory is
    /// read as a whole a moment after it was written in parts, and waits until all writes before it are done.
    place: u64,
}

/// The data of a bio or a request, in order. One element needs no allocation.
pub type Segments = SmallVec<[Segment; 2]>;

impl Segment {
    /// `len` bytes at `offset` of `buffer`.
    ///
    /// # Panics
    /// If the range lies outside of the buffer, or is not below 4 GiB.
    #[inline(always)]
    pub fn new(buffer: Buffer, offset: usize, len: usize) -> Segment {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= buffer.len()),
            "{len} bytes at {offset} of a buffer of {}",
            buffer.len()
        );
        let offset = u32::try_from(offset).expect("a buffer is smaller than 4 GiB");
        let len = u32::try_from(len).expect("a segment is smaller than 4 GiB");
        Segment { buffer, place: place(offset, len) }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.place >> 32) as usize
    }

    /// Whether it holds no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is memory of a mapping that was cut short: looks at each of its pages, which is what tells.
    #[cold]
    pub fn is_gone(&self) -> bool {
        let Some(mapping) = self.buffer.mapping() else { return false };
        let mut byte = [0];
        for at in (0..self.len()).step_by(PAGE).chain(self.len().checked_sub(1)) {
            self.read_at(at, &mut byte);
            // Or there would be no need to read it.
            std::hint::black_box(&byte);
        }
        mapping.is_torn()
    }

    /// The buffer it lies in.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where it starts in its buffer, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        self.place as u32 as usize // the lower half
    }

    /// Address of its first byte, for the kernel; valid while the segment lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ptr().wrapping_add(self.offset())
    }

    /// The part of `len` bytes at `offset` within this segment.
    ///
    /// # Panics
    /// If it lies outside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()));
        Segment::new(self.buffer.clone(), self.offset() + offset, len)
    }

    /// What is left of it: `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they lie outside.
    #[inline]
    pub fn into_slice(self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()));
        let offset = self.offset() + offset;
        Segment::new(self.buffer, offset, len)
    }

    /// Copies out `bytes.len()` bytes at `offset`.
    #[inline]
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len()));
        self.buffer.read_at(self.offset() + offset, bytes);
    }

    /// Copies in `bytes` at `offset`.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len()));
        self.buffer.write_at(self.offset() + offset, bytes);
    }

    /// Sets every byte to `value`.
    #[inline]
    pub fn fill(&self, value: u8) {
        self.buffer.fill(self.offset(), self.len(), value);
    }

    /// Grows by `next` if that follows in the same buffer; tells whether it did.
    #[inline]
    pub fn extend(&mut self, next: &Segment) -> bool {
        let adjoins = self.offset() + self.len() == next.offset() && self.buffer.same(&next.buffer);
        match u32::try_from(self.len() + next.len()) {
            Ok(len) if adjoins => {
                self.place = place(self.place as u32, len); // the lower half
                true
            }
            _ => false,
        }
    }
}

#[inline]
fn place(offset: u32, len: u32) -> u64 {
    u64::from(offset) | u64::from(len) << 32
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (offset, len) = (self.offset(), self.len());
        f.debug_struct("Segment")
            .field("buffer", &self.buffer)
            .field("offset", &offset)
            .field("len", &len)
            .finish()
    }
}

/// Sum of the lengths, in bytes.
#[inline]
pub fn bytes_in(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::len).sum()
}

/// Appends to `out` the `len` bytes at `offset` of the byte string that `segments` make up.
///
/// # Panics
/// If that range lies outside.
#[inline]
pub fn slice_segments(segments: &[Segment], offset: usize, len: usize, out: &mut Segments) {
    if let [only] = segments {
        // The usual case: one buffer a bio.
        out.push(only.slice(offset, len));
        return;
    }
    let (mut skip, mut left) = (offset, len);
    for segment in segments {
        if left == 0 {
            break;
        }
        if skip >= segment.len() {
            skip -= segment.len();
            continue;
        }
        let take = left.min(segment.len() - skip);
        out.push(segment.slice(skip, take));
        left -= take;
        skip = 0;
    }
    assert_eq!(left, 0, "{len} bytes at {offset} of segments of {} bytes", bytes_in(segments));
}

/// Copies the byte string that `from` makes up to that of `to`; the shorter one ends it. Returns the bytes copied.
pub fn copy_between(from: &[Segment], to: &[Segment]) -> usize {
    let Some((mut target, mut to)) = to.split_first() else { return 0 };
    // Bytes of the target that were written, and of all.
    let (mut written, mut copied) = (0, 0);
    for source in from {
        let mut read = 0;
        loop {
            let step = (source.len() - read).min(target.len() - written);
            let at = (target.offset() + written, source.offset() + read);
            target.buffer.copy_from(at.0, &source.buffer, at.1, step);
            (read, written, copied) = (read + step, written + step, copied + step);
            if read == source.len() {
                break;
            }
            let Some((next, others)) = to.split_first() else { return copied };
            (target, to, written) = (next, others, 0);
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(bytes: &[u8]) -> Segment {
        let buffer = Buffer::new(bytes.len());
        buffer.write_at(0, bytes);
        Segment::new(buffer, 0, bytes.len())
    }

    fn text(segments: &[Segment]) -> Vec<u8> {
        let mut all = Vec::new();
        for segment in segments {
            let mut bytes = vec![0; segment.len()];
            segment.read_at(0, &mut bytes);
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn slicing_a_list_gives_the_same_bytes_as_slicing_its_text() {
        let list = [filled(b"abc"), filled(b""), filled(b"defgh"), filled(b"i")];
        let whole = text(&list);
        for start in 0..whole.len() {
            for len in 1..=whole.len() - start {
                let mut out = Segments::new();
                slice_segments(&list, start, len, &mut out);
                assert_eq!(text(&out), whole[start..start + len], "{len} at {start}");
            }
        }
    }

    #[test]
    fn copying_between_lists_of_other_shapes_keeps_the_order() {
        let from = [filled(b"-ab").slice(1, 2), filled(b""), filled(b"cdefg"), filled(b"h-").slice(0, 1)];
        for first in 0..=10 {
            for second in 0..=10 - first {
                let room = filled(b"<..........>");
                let to = [(1, first), (1 + first, second), (1 + first + second, 10 - first - second)];
                let to = to.map(|(at, len)| room.slice(at, len));
                assert_eq!(copy_between(&from, &to), 8);
                assert_eq!(text(std::slice::from_ref(&room)), b"<abcdefgh..>", "cut at {first} and {second}");
                // And back, as far as there is room.
                let back = [filled(b".."), filled(b"..."), filled(b".")];
                assert_eq!(copy_between(&to, &back), 6);
                assert_eq!(text(&back), b"abcdef", "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_segment_extends_over_its_neighbour_in_the_same_buffer_only() {
        let a = filled(b"abcdef");
        let mut head = a.slice(0, 2);
        assert!(head.extend(&a.slice(2, 3)));
        assert_eq!(text(&[head.clone()]), b"abcde");
        assert!(!head.extend(&a.slice(0, 1)));
        let mut inner = a.slice(1, 2);
        assert!(inner.extend(&a.slice(3, 1)) && !inner.extend(&a.slice(3, 1)));
        assert_eq!(text(&[inner]), b"bcd");
        assert!(!head.extend(&filled(b"f").slice(0, 1)));
    }

    #[test]
    #[should_panic(expected = "of a buffer of")]
    fn a_range_beyond_the_buffer_is_refused() {
        Segment::new(Buffer::new(10), 4090, 7);
    }
}
