//! Xen's block interface: a ring of requests and responses in shared pages, and the text that both ends agree upon it by.
//!
//! Source: Xen's public headers `io/blkif.h`, `io/ring.h`, `io/xenbus.h`, `io/protocols.h`. All numbers are little-endian (no
//! other machine runs Xen), and a *sector* has 512 bytes whatever `sector-size` says. The layout is the *front end's*: a host
//! of 64 bits serves guests of 32.
//!
//! Invariants:
//! 1. A [`Request`] that was decoded keeps the rules that need no knowledge of the device: its operation exists, it has
//!    as many segments as may be, and each lies in its page. One that does not comes as [`Malformed`], with what its
//!    answer needs: a front end waits for one answer to each request.
//! 2. What is decoded is bytes that were copied out of the ring before; nothing here sees shared memory.
//! 3. Counts that the other end sends are bounded before anything is allocated by them.
//!
//! Not here: whether a request lies in the device, whose pages it names, what a state means: see `blockwork_export::blkif`.

mod keys;
mod request;
mod vdev;

pub use keys::{
    BackFeatures, BackProperties, Discards, FrontParameters, KeyError, Limits, Pairs, QueueParameters, vdisk,
};
pub use request::{
    Data, Direct, Fault, Found, Kind, Malformed, Operation, Request, Response, Segment, Segments, Status,
    decode_segments, encode_segments, operation, request_len,
};
pub use vdev::{NotADevice, VirtualDevice};

/// Bytes of a page of a ring, of an indirect page, and of what a grant gives access to.
pub const PAGE_BYTES: usize = 4096;
/// Sectors of a page: what `first_sect` and `last_sect` count.
pub const PAGE_SECTORS: u8 = 8;
/// Segments that a request itself has room for.
pub const SEGMENTS_MAX: usize = 11;
/// Pages of segments that an indirect request can name.
pub const INDIRECT_PAGES_MAX: usize = 8;
/// Bytes of a segment.
pub const SEGMENT_BYTES: usize = 8;
/// Segments in a page of them.
pub const SEGMENTS_PER_PAGE: usize = PAGE_BYTES / SEGMENT_BYTES;
/// Segments of an indirect request at most, by the protocol; back ends publish less.
pub const INDIRECT_SEGMENTS_MAX: usize = INDIRECT_PAGES_MAX * SEGMENTS_PER_PAGE;
/// Bytes of the longest request in a ring, of either layout.
pub const REQUEST_BYTES_MAX: usize = 112;

/// Where in a ring's first page its indices are, bytes; the slots follow at [`ring::SLOTS`].
pub mod ring {
    /// Requests that the front end has put in.
    pub const REQ_PROD: usize = 0;
    /// The back end wants to hear of the request that makes `req_prod` this.
    pub const REQ_EVENT: usize = 4;
    /// Responses that the back end has put in.
    pub const RSP_PROD: usize = 8;
    /// The front end wants to hear of the response that makes `rsp_prod` this.
    pub const RSP_EVENT: usize = 12;
    /// The first slot.
    pub const SLOTS: usize = 64;
    /// Pages of a ring at most: order 4, as Linux has it.
    pub const PAGES_MAX: u32 = 16;
}

/// Whether the other end has asked to hear of one of the entries between `old` and `new`, all of them indices that wrap.
#[inline]
pub fn wants_event(old: u32, new: u32, event: u32) -> bool {
    new.wrapping_sub(event) < new.wrapping_sub(old)
}

/// How a front end lays out requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// 64-bit numbers lie at multiples of eight: x86 of 64 bits, and ARM of either size.
    Bits64,
    /// They lie at multiples of four: x86 of 32 bits.
    Bits32,
}

impl Abi {
    /// The layout of this machine's own kernel.
    pub const NATIVE: Abi = if cfg!(target_arch = "x86") { Abi::Bits32 } else { Abi::Bits64 };

    /// Bytes of a slot: of the larger of request and response.
    #[inline]
    pub fn slot_bytes(self) -> usize {
        match self {
            Abi::Bits64 => 112,
            Abi::Bits32 => 108,
        }
    }

    /// Requests that fit a ring of so many pages: the largest power of two.
    pub fn slots(self, pages: u32) -> u32 {
        let bytes = crate::bytes::index(pages) * PAGE_BYTES;
        let whole = bytes.saturating_sub(ring::SLOTS) / self.slot_bytes();
        whole.checked_ilog2().map_or(0, |log| 1 << log)
    }

    /// Where in a ring of `slots` the entry of that index lies, bytes from its start.
    #[inline]
    pub fn slot_at(self, index: u32, slots: u32) -> usize {
        ring::SLOTS + crate::bytes::index(index & (slots - 1)) * self.slot_bytes()
    }

    /// Bytes of a response.
    #[inline]
    pub fn response_bytes(self) -> usize {
        match self {
            Abi::Bits64 => 16,
            Abi::Bits32 => 12,
        }
    }

    /// What the `protocol` key says for it: of x86, and of ARM on ARM.
    pub fn protocol(self) -> &'static str {
        match self {
            Abi::Bits64 if cfg!(any(target_arch = "arm", target_arch = "aarch64")) => "arm-abi",
            Abi::Bits64 => "x86_64-abi",
            Abi::Bits32 => "x86_32-abi",
        }
    }

    /// From the `protocol` key; `None` if there is no such.
    pub fn from_protocol(text: &str) -> Option<Abi> {
        match text {
            "x86_64-abi" | "arm-abi" => Some(Abi::Bits64),
            "x86_32-abi" => Some(Abi::Bits32),
            _ => None,
        }
    }
}

/// Where one end of a device is in connecting, as its `state` key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum XenbusState {
    /// Nothing has been said, or the device is not there.
    Unknown = 0,
    /// It begins.
    Initialising = 1,
    /// What it can do is published; it waits for the other end, or for the tools.
    InitWait = 2,
    /// Its rings are published.
    Initialised = 3,
    /// It works.
    Connected = 4,
    /// It lets go.
    Closing = 5,
    /// It has let go.
    Closed = 6,
    /// It is being changed.
    Reconfiguring = 7,
    /// It was changed.
    Reconfigured = 8,
}

impl XenbusState {
    /// All of them, by number.
    pub const ALL: [XenbusState; 9] = [
        XenbusState::Unknown,
        XenbusState::Initialising,
        XenbusState::InitWait,
        XenbusState::Initialised,
        XenbusState::Connected,
        XenbusState::Closing,
        XenbusState::Closed,
        XenbusState::Reconfiguring,
        XenbusState::Reconfigured,
    ];

    /// From the `state` key. What is no state is [`XenbusState::Unknown`], as a key that is not there is.
    pub fn from_text(text: &str) -> XenbusState {
        let number = text.trim().parse::<usize>().ok();
        number.and_then(|number| XenbusState::ALL.get(number)).copied().unwrap_or(XenbusState::Unknown)
    }

    /// What the `state` key says for it.
    pub fn text(self) -> String {
        (self as u8).to_string()
    }
}

#[cfg(test)]
mod tests;
