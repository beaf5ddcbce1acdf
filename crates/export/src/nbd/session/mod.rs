//! A session of the NBD protocol without any I/O: bytes in, decisions and bytes out.
//!
//! ```text
//!   Handshake ── STARTTLS ──▶ (the caller makes TLS, then) Handshake::after_tls
//!       └─ GO, EXPORT_NAME ──▶ Transmission ── DISC, or a breach of the protocol ──▶ end
//! ```
//!
//! Invariants:
//! 1. Nothing that a peer sends makes it panic, loop, or hold more than one option (64 KiB) of its bytes.
//! 2. Before TLS, where it is demanded, no export is named, counted or described, and nothing that was said is
//!    remembered afterwards (CVE-2021-3716: the session after the upgrade starts from nothing).
//! 3. Every request is answered exactly once (but for DISC), and a refused write's payload is skipped.
//! 4. What [`Transmission`] lets through lies within the export and its limits.
//!
//! Not here: sockets, buffers and bios (`connection`).

mod handshake;
mod transmission;

pub use handshake::{Handshake, Progress, TlsState};
pub use transmission::{Kind, Refusal, Step, Submit, Transmission};

use blockwork_format::nbd::Malformed;

/// Why a session is over. For logs; the peer only sees the connection close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client said so.
    #[error("the client disconnected")]
    Disconnected,
    /// The client gave up during the handshake.
    #[error("the client aborted the handshake")]
    Aborted,
    /// The peer does not speak NBD, or wrongly.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// Too many options.
    #[error("the client sent more than {0} options")]
    TooManyOptions(u32),
    /// An option too long to be read and thrown away.
    #[error("an option has {0} bytes of data, the limit is {OPTION_SKIP_MAX}")]
    OptionTooLong(u32),
    /// Something other than options was sent with the only option that ends without an answer.
    #[error(
        "the client asked for an export that does not exist or not without TLS, by an option without an answer"
    )]
    NoSuchExport,
    /// EXPORT_NAME after EXTENDED_HEADERS.
    #[error("the client used EXPORT_NAME after EXTENDED_HEADERS")]
    ExportNameAfterExtended,
    /// Bytes in clear text after STARTTLS.
    #[error("the client sent {0} bytes in clear text after STARTTLS")]
    PlainTextAfterStartTls(usize),
    /// A payload beyond what was announced.
    #[error("a payload has {0} bytes, the limit is {max}", max = blockwork_format::nbd::PAYLOAD_MAX)]
    PayloadTooLong(u64),
}

/// Longest data of an option that is read and thrown away, bytes; beyond it the connection is closed.
pub const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Most options in a session. `nbdinfo --list` asks twice about each export that it was told of.
pub const OPTIONS_MAX: u32 = 40_000;
/// The id of `base:allocation`, the only metadata context.
pub const ALLOCATION_CONTEXT: u32 = 1;
