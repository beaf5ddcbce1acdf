//! System calls on segments that are made at once, without the ring.
//!
//! For descriptors that never block and where the ring would only add a hop, such as `/dev/fuse`: it has no
//! non-blocking mode that io_uring trusts, so a read of it by the ring goes through a kernel thread, while readv(2) of an
//! `O_NONBLOCK` descriptor takes a queued request with no hand-over.
//!
//! Invariants:
//! 1. The kernel is told of memory only for the length of the call, during which the borrowed segments keep it alive.
//! 2. At most [`NOW_SEGMENTS_MAX`] segments go into one call; more are an error of the caller's.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use blockwork_engine::Errno;
use blockwork_memory::Segment;

/// Most segments of one [`read_now`] or [`write_now`]: a header and a bio's data at its largest.
pub const NOW_SEGMENTS_MAX: usize = 64;

/// The segments as the kernel wants them, on the stack.
struct Vectors {
    vectors: [MaybeUninit<libc::iovec>; NOW_SEGMENTS_MAX],
    count: usize,
}

impl Vectors {
    fn new(segments: &[Segment]) -> Vectors {
        assert!(segments.len() <= NOW_SEGMENTS_MAX, "{} segments in one call", segments.len());
        let mut vectors = [const { MaybeUninit::uninit() }; NOW_SEGMENTS_MAX];
        for (vector, segment) in vectors.iter_mut().zip(segments) {
            vector.write(libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() });
        }
        Vectors { vectors, count: segments.len() }
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.vectors.as_ptr().cast()
    }

    fn count(&self) -> libc::c_int {
        libc::c_int::try_from(self.count).expect("NOW_SEGMENTS_MAX fits")
    }
}

/// readv(2): fills `into` in order, and returns the bytes read (0: end of file).
///
/// # Errors
/// The kernel's errno; EAGAIN where nothing is there and the descriptor is `O_NONBLOCK`.
///
/// # Panics
/// If there are more than [`NOW_SEGMENTS_MAX`] segments.
#[inline]
pub fn read_now(fd: BorrowedFd<'_>, into: &[Segment]) -> Result<usize, Errno> {
    let vectors = Vectors::new(into);
    // SAFETY: the first `count` vectors were written from segments that are borrowed, and so alive, for this call; no
    // Rust reference to their memory exists anywhere (invariant of `blockwork-memory`).
    let read = unsafe { libc::readv(fd.as_raw_fd(), vectors.as_ptr(), vectors.count()) };
    usize::try_from(read).map_err(|_| Errno::from_io(&std::io::Error::last_os_error()))
}

/// writev(2): writes `data` in order, and returns the bytes written, which may be fewer.
///
/// # Errors
/// The kernel's errno.
///
/// # Panics
/// If there are more than [`NOW_SEGMENTS_MAX`] segments.
#[inline]
pub fn write_now(fd: BorrowedFd<'_>, data: &[Segment]) -> Result<usize, Errno> {
    let vectors = Vectors::new(data);
    // SAFETY: as in `read_now`; the kernel only reads.
    let written = unsafe { libc::writev(fd.as_raw_fd(), vectors.as_ptr(), vectors.count()) };
    usize::try_from(written).map_err(|_| Errno::from_io(&std::io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use blockwork_memory::Buffer;

    use super::*;

    #[test]
    fn what_is_written_from_two_segments_is_read_into_three() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let from = Buffer::new(4096);
        from.write_at(0, b"header");
        from.write_at(100, b"payload");
        let data = [Segment::new(from.clone(), 0, 6), Segment::new(from, 100, 7)];
        assert_eq!(write_now(writer.as_fd(), &data), Ok(13));

        let to = Buffer::new(4096);
        let into = [(0, 1), (10, 9), (50, 100)].map(|(at, len)| Segment::new(to.clone(), at, len));
        assert_eq!(read_now(reader.as_fd(), &into), Ok(13));
        let mut bytes = [0; 60];
        to.read_at(0, &mut bytes);
        assert_eq!((bytes[0], &bytes[10..19], &bytes[50..53]), (b'h', &b"eaderpayl"[..], &b"oad"[..]));
    }

    #[test]
    fn an_empty_non_blocking_descriptor_says_eagain() {
        let (reader, _writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let into = [Segment::new(Buffer::new(10), 0, 10)];
        assert_eq!(read_now(reader.as_fd(), &into), Err(Errno(libc::EAGAIN)));
    }
}
