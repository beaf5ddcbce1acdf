//! The NBD server.
//!
//! ```text
//!   listen (where clients connect) ─▶ server (accepts, spreads over workers) ─▶ connection (sockets, memory, bios)
//!                                                                                    └─ session (the protocol, no I/O)
//! ```
//!
//! Serves the fixed newstyle protocol with structured replies, block status (`base:allocation`), 64-bit extended headers,
//! several connections to one export, and TLS by certificates.
//!
//! What is promised:
//! 1. A flush, or a write with FUA, that was answered covers all writes that were answered before it was sent, on any
//!    connection to the same volume.
//! 2. A client costs at most its limits ([`NbdConfig`]), and a broken or hostile one costs only itself.
//! 3. TRIM may do less than asked. CACHE does nothing: there is no cache of ours, and the answer says no more than that the
//!    range is sound.
//! 4. Any range of bytes may be asked for; what is not whole logical blocks is read, modified and written.

mod budget;
mod config;
mod connection;
mod exports;
mod listen;
mod server;
pub mod session;
mod tls;

pub use config::NbdConfig;
pub use exports::{Export, Exports};
pub use listen::{ListenError, Listener, inherited, uri_of};
pub use server::{Server, ServerCounts};
pub use tls::{ServerTls, TlsError};
