//! TLS without I/O: what was received in cipher text becomes clear text in the inbox, and what is to be sent becomes cipher
//! text in buffers of the pool.
//!
//! Invariant: beside the two inboxes, a client has us hold cipher text of one send, until it is sent ([`SEND_MAX`], and one record more, in whole
//! pieces), a record of clear text ([`RECORD`]) each way, and what rustls allows of messages that are not whole: 64 KiB of a handshake's,
//! 18 KiB of others. None of it counts against the client's limits, as it is no more for one that asks for much.

use std::io::{self, Read, Write};

use blockwork_memory::{Pool, Segment};
use rustls::ServerConnection;

use super::inbox::Inbox;
use crate::nbd::tls::ServerTls;

/// Cipher text that one send takes, bytes; the rest waits.
const SEND_MAX: usize = 256 << 10;
/// Size of a buffer for cipher text, bytes.
const PIECE: usize = 64 << 10;
/// Clear text in one record at most, bytes.
const RECORD: usize = 16 << 10;

/// The server's side of TLS on one connection.
pub(super) struct Cipher {
    tls: ServerConnection,
    /// Received, not yet decrypted.
    pub(super) raw: Inbox,
    /// Where in the batch that is being sent the encryption has arrived: segment, and offset in it.
    place: (usize, usize),
    out: Vec<Segment>,
    scratch: Vec<u8>,
    closing: bool,
}

/// What a call of [`Cipher::decrypt`] came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decrypted {
    /// All that could be.
    Progress,
    /// The peer has ended the stream.
    End,
}

impl Cipher {
    pub(super) fn new(tls: &ServerTls) -> Result<Cipher, rustls::Error> {
        let mut tls = ServerConnection::new(tls.config.clone())?;
        // What is written is taken out at once.
        tls.set_buffer_limit(Some(RECORD));
        Ok(Cipher {
            tls,
            raw: Inbox::new(),
            place: (0, 0),
            out: Vec::new(),
            scratch: vec![0; RECORD],
            closing: false,
        })
    }

    /// Decrypts as much of `raw` as there is room for in `clear`.
    ///
    /// # Errors
    /// The peer broke the protocol of TLS, or showed no good certificate. An alert for it may be left to be sent.
    pub(super) fn decrypt(&mut self, clear: &mut Inbox, pool: &Pool) -> Result<Decrypted, rustls::Error> {
        loop {
            // What rustls holds goes out first, so that it never holds more than one record.
            let free = clear.free(pool).min(RECORD);
            if free == 0 {
                return Ok(Decrypted::Progress);
            }
            match self.tls.reader().read(&mut self.scratch[..free]) {
                Ok(0) => return Ok(Decrypted::End),
                Ok(bytes) => {
                    clear.append(&self.scratch[..bytes]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(Decrypted::End),
            }
            let take = self.raw.len().min(RECORD);
            if take == 0 {
                return Ok(Decrypted::Progress);
            }
            self.raw.peek(&mut self.scratch[..take]);
            let mut input = &self.scratch[..take];
            let read = self.tls.read_tls(&mut input).unwrap_or(0);
            self.raw.consume(read);
            self.tls.process_new_packets()?;
            if read == 0 {
                return Ok(Decrypted::Progress);
            }
        }
    }

    /// Makes the next send: cipher text of `batch` from where the last call ended, and what TLS itself has to say. Tells
    /// whether all of `batch` is in it. Empty: nothing to send.
    pub(super) fn encrypt(&mut self, batch: &[Segment], pool: &Pool) -> (&[Segment], bool) {
        self.out.clear();
        let mut sink = Sink { pool, out: &mut self.out, last: None, used: 0, bytes: 0 };
        // Nothing is written before the handshake is over: rustls would hold it back, in its own memory.
        while sink.bytes < SEND_MAX && self.place.0 < batch.len() && !self.tls.is_handshaking() {
            let segment = &batch[self.place.0];
            let take = (segment.len() - self.place.1).min(RECORD);
            segment.slice(self.place.1, take).read_at(0, &mut self.scratch[..take]);
            let written = self.tls.writer().write(&self.scratch[..take]).unwrap_or(0);
            self.place.1 += written;
            if self.place.1 == segment.len() {
                self.place = (self.place.0 + 1, 0);
            }
            drain(&mut self.tls, &mut sink);
            if written == 0 {
                break;
            }
        }
        drain(&mut self.tls, &mut sink);
        let whole = self.place.0 == batch.len();
        if whole {
            self.place = (0, 0);
        }
        (&self.out, whole)
    }

    /// What [`Cipher::encrypt`] gave has been sent: a connection at rest keeps none of it.
    pub(super) fn sent(&mut self) {
        self.out.clear();
    }

    /// Whether TLS itself has something to send.
    pub(super) fn wants_send(&self) -> bool {
        self.tls.wants_write()
    }

    /// Says goodbye, once.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.closing, true) {
            self.tls.send_close_notify();
        }
    }
}

fn drain(tls: &mut ServerConnection, sink: &mut Sink<'_>) {
    while tls.wants_write() {
        tls.write_tls(sink).expect("a sink takes everything");
    }
}

/// Takes cipher text into buffers of the pool.
struct Sink<'a> {
    pool: &'a Pool,
    out: &'a mut Vec<Segment>,
    last: Option<Segment>,
    used: usize,
    bytes: usize,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.last.is_none() || self.used == PIECE {
            self.last = Some(Segment::new(self.pool.get(PIECE), 0, PIECE));
            self.used = 0;
        }
        let piece = self.last.as_ref().expect("it was just made");
        let take = bytes.len().min(PIECE - self.used);
        piece.write_at(self.used, &bytes[..take]);
        let segment = piece.slice(self.used, take);
        if take > 0 && !self.out.last_mut().is_some_and(|last| last.extend(&segment)) {
            self.out.push(segment);
        }
        self.used += take;
        self.bytes += take;
        Ok(take)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::ServerConfig;
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    /// A server's side that has no certificate, and so answers any client by an alert.
    fn cipher() -> Cipher {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let none = Arc::new(ResolvesServerCertUsingSni::new());
        let config = config.with_no_client_auth().with_cert_resolver(none);
        Cipher::new(&ServerTls { config: Arc::new(config) }).unwrap()
    }

    #[test]
    fn of_what_is_written_rustls_holds_one_record() {
        let mut cipher = cipher();
        assert_eq!(cipher.tls.writer().write(&[1; 4 * RECORD]).unwrap(), RECORD);
    }

    #[test]
    fn cipher_text_that_was_sent_is_kept_no_longer() {
        let (mut cipher, pool) = (cipher(), Pool::new(1 << 20));
        let room = cipher.raw.room(&pool).unwrap();
        room.write_at(0, &[0x55; 100]);
        cipher.raw.received(100);
        assert!(cipher.decrypt(&mut Inbox::new(), &pool).is_err());
        let (alert, whole) = cipher.encrypt(&[], &pool);
        assert!(!alert.is_empty() && whole);
        let kept = pool.kept_bytes();
        cipher.sent();
        assert_eq!(pool.kept_bytes(), kept + PIECE, "the pool has its piece again");
    }
}
