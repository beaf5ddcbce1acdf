//! The transmission phase: what each request is, and whether it may be done.

use super::{ALLOCATION_CONTEXT, CloseReason};
use crate::nbd::exports::Export;
use crate::offered::Opened;
use blockwork_format::nbd::{
    PAYLOAD_MAX, ReplyHead, Request, StatusPayload, Style, WireErrno, command, command_flags as flag,
    transmission_flags,
};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read; the reply carries data.
    Read,
    /// Write; the payload follows the header.
    Write {
        /// Durable when answered.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Discard.
    Trim {
        /// Durable when answered.
        fua: bool,
    },
    /// Write zeros.
    WriteZeroes {
        /// Durable when answered.
        fua: bool,
        /// Do not punch holes.
        no_hole: bool,
        /// Fail rather than write zeros.
        fast: bool,
    },
    /// Tell what is allocated.
    BlockStatus {
        /// One extent only, not longer than asked for.
        one: bool,
    },
}

/// A request that may be done. It lies within the export; only flushes are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submit {
    /// What.
    pub kind: Kind,
    /// The client's number for it.
    pub cookie: u64,
    /// The offset in the request's header, which extended replies repeat; where it starts, bytes.
    pub offset: u64,
    /// How much, bytes. At most [`PAYLOAD_MAX`] for reads and writes.
    pub len: u64,
}

/// A request that is answered at once.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The whole reply.
    pub reply: ReplyHead,
    /// Bytes of payload to throw away before the next request.
    pub skip: u32,
}

/// What a request comes to.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The header wants more: call again with [`Transmission::wanted`] bytes.
    More,
    /// Do it, and answer when it is done. A write's payload follows.
    Submit(Submit),
    /// Nothing to do: answer.
    Answer(Refusal),
    /// The client is done: finish what was begun, then close.
    Disconnect,
}

/// The server's side of the transmission phase.
#[derive(Clone, Debug)]
pub struct Transmission {
    export: Opened<Export>,
    style: Style,
    flags: u16,
    /// `base:allocation` was chosen.
    allocation: bool,
    shutdown: bool,
    /// A BLOCK_STATUS whose payload comes next.
    status: Option<Request>,
}

impl Transmission {
    pub(super) fn new(export: Opened<Export>, style: Style, flags: u16, allocation: bool) -> Transmission {
        Transmission { export, style, flags, allocation, shutdown: false, status: None }
    }

    /// What was chosen.
    #[inline]
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// What was told to the client.
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// The headers agreed upon.
    #[inline]
    pub fn style(&self) -> Style {
        self.style
    }

    /// From now on every request is refused with ESHUTDOWN.
    pub fn shut_down(&mut self) {
        self.shutdown = true;
    }

    /// Bytes that the next call of [`Transmission::request`] wants.
    #[inline]
    pub fn wanted(&self) -> usize {
        if self.status.is_some() { StatusPayload::LEN } else { self.style.request_len() }
    }

    /// Takes a request's header (or what [`Step::More`] wanted): exactly [`Transmission::wanted`] bytes.
    ///
    /// # Errors
    /// A breach of the protocol after which nothing can be understood any more: close.
    #[inline]
    pub fn request(&mut self, bytes: &[u8]) -> Result<Step, CloseReason> {
        const EXACTLY: &str = "the caller brings as many bytes as are wanted";
        if let Some(request) = self.status.take() {
            return Ok(self.status_payload(request, bytes.first_chunk().expect(EXACTLY)));
        }
        let request = match self.style {
            Style::Simple | Style::Structured => {
                Request::decode_compact(bytes.first_chunk().expect(EXACTLY))?
            }
            Style::Extended => Request::decode_extended(bytes.first_chunk().expect(EXACTLY))?,
        };
        if request.command == command::DISC {
            return Ok(Step::Disconnect);
        }
        let payload = self.payload(&request)?;
        match self.check(&request, payload) {
            Ok(step) => Ok(step),
            Err(errno) => Ok(Step::Answer(Refusal { reply: self.error(&request, errno), skip: payload })),
        }
    }

    /// Bytes of payload that follow a header.
    #[inline]
    fn payload(&self, request: &Request) -> Result<u32, CloseReason> {
        let has_payload = match self.style {
            Style::Simple | Style::Structured => request.command == command::WRITE,
            Style::Extended => request.flags & flag::PAYLOAD_LEN != 0,
        };
        match u32::try_from(request.len) {
            _ if !has_payload => Ok(0),
            Ok(len) if len <= PAYLOAD_MAX => Ok(len),
            _ => Err(CloseReason::PayloadTooLong(request.len)),
        }
    }

    fn check(&mut self, request: &Request, payload: u32) -> Result<Step, WireErrno> {
        if self.shutdown {
            return Err(WireErrno::Shutdown);
        }
        // FUA goes with anything; where nothing is written it means nothing.
        let allowed = flag::FUA
            | match request.command {
                command::READ if self.flags & transmission_flags::SEND_DF != 0 => flag::DF,
                command::WRITE if self.style == Style::Extended => flag::PAYLOAD_LEN,
                command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
                command::BLOCK_STATUS if self.style == Style::Extended => flag::REQ_ONE | flag::PAYLOAD_LEN,
                command::BLOCK_STATUS => flag::REQ_ONE,
                _ => 0,
            };
        if request.flags & !allowed != 0 {
            return Err(WireErrno::Inval);
        }
        let fua = request.flags & flag::FUA != 0;
        let kind = match request.command {
            command::READ => Kind::Read,
            command::WRITE if self.style == Style::Extended && request.flags & flag::PAYLOAD_LEN == 0 => {
                return Err(WireErrno::Inval);
            }
            command::WRITE => self.writable(Kind::Write { fua })?,
            command::FLUSH if request.offset != 0 || request.len != 0 => return Err(WireErrno::Inval),
            command::FLUSH => Kind::Flush,
            command::TRIM => self.writable(Kind::Trim { fua })?,
            command::WRITE_ZEROES => {
                let no_hole = request.flags & flag::NO_HOLE != 0;
                let fast = request.flags & flag::FAST_ZERO != 0;
                self.writable(Kind::WriteZeroes { fua, no_hole, fast })?
            }
            command::CACHE => {
                self.range(request.offset, request.len, WireErrno::Inval)?;
                // There is no cache of ours to fill: a success promises nothing.
                return Ok(self.nothing_to_do(request, payload));
            }
            command::BLOCK_STATUS => return self.block_status(request, payload),
            _ => return Err(WireErrno::Inval),
        };
        self.submit(kind, request, payload)
    }

    fn submit(&self, kind: Kind, request: &Request, payload: u32) -> Result<Step, WireErrno> {
        let beyond = match kind {
            Kind::Write { .. } | Kind::WriteZeroes { .. } => WireErrno::NoSpc,
            Kind::Read | Kind::Flush | Kind::Trim { .. } | Kind::BlockStatus { .. } => WireErrno::Inval,
        };
        self.range(request.offset, request.len, beyond)?;
        if kind == Kind::Read && request.len > u64::from(PAYLOAD_MAX) {
            return Err(WireErrno::Overflow);
        }
        if let Kind::Trim { .. } = kind
            && !self.export.has(transmission_flags::SEND_TRIM)
        {
            return Err(WireErrno::Inval);
        }
        if request.len == 0 && kind != Kind::Flush {
            return Ok(self.nothing_to_do(request, payload));
        }
        Ok(Step::Submit(Submit { kind, cookie: request.cookie, offset: request.offset, len: request.len }))
    }

    fn nothing_to_do(&self, request: &Request, payload: u32) -> Step {
        let head = if in_chunks(request.command) { ReplyHead::done_in_chunks } else { ReplyHead::done };
        Step::Answer(Refusal { reply: head(self.style, request.cookie, request.offset), skip: payload })
    }

    #[inline]
    fn writable(&self, kind: Kind) -> Result<Kind, WireErrno> {
        if self.export.has(transmission_flags::READ_ONLY) { Err(WireErrno::Perm) } else { Ok(kind) }
    }

    #[inline]
    fn range(&self, offset: u64, len: u64, beyond: WireErrno) -> Result<(), WireErrno> {
        match offset.checked_add(len) {
            Some(end) if end <= self.export.size => Ok(()),
            _ => Err(beyond),
        }
    }

    fn block_status(&mut self, request: &Request, payload: u32) -> Result<Step, WireErrno> {
        if !self.allocation {
            return Err(WireErrno::Inval);
        }
        if request.flags & flag::PAYLOAD_LEN != 0 {
            // There is one context, so any other length names an unknown one, one twice, or none.
            if payload as usize != StatusPayload::LEN {
                return Err(WireErrno::Inval);
            }
            self.status = Some(*request);
            return Ok(Step::More);
        }
        if request.len == 0 {
            return Err(WireErrno::Inval);
        }
        self.submit(Kind::BlockStatus { one: request.flags & flag::REQ_ONE != 0 }, request, 0)
    }

    fn status_payload(&self, request: Request, bytes: &[u8; StatusPayload::LEN]) -> Step {
        let payload = StatusPayload::decode(bytes);
        let kind = Kind::BlockStatus { one: request.flags & flag::REQ_ONE != 0 };
        let effect = Request { len: payload.len, ..request };
        let step = if payload.context != ALLOCATION_CONTEXT || payload.len == 0 {
            Err(WireErrno::Inval)
        } else {
            self.submit(kind, &effect, 0)
        };
        step.unwrap_or_else(|errno| Step::Answer(Refusal { reply: self.error(&request, errno), skip: 0 }))
    }

    fn error(&self, request: &Request, errno: WireErrno) -> ReplyHead {
        ReplyHead::error(self.style, in_chunks(request.command), request.cookie, request.offset, errno)
    }

    /// The reply's head to a request that was done: for a read its data follows.
    #[inline]
    pub fn success(&self, submit: &Submit) -> ReplyHead {
        match (submit.kind, u32::try_from(submit.len)) {
            (Kind::Read, Ok(len)) => ReplyHead::data(self.style, submit.cookie, submit.offset, len),
            _ => ReplyHead::done(self.style, submit.cookie, submit.offset),
        }
    }

    /// The reply to a request that failed.
    pub fn failure(&self, submit: &Submit, errno: WireErrno) -> ReplyHead {
        let chunks = matches!(submit.kind, Kind::Read | Kind::BlockStatus { .. });
        // ENOTSUP is for those who asked for "fast or not at all"; anybody else was promised success or an error.
        let errno = match (errno, submit.kind) {
            (WireErrno::NotSup, Kind::WriteZeroes { fast: true, .. }) => WireErrno::NotSup,
            (WireErrno::NotSup, Kind::WriteZeroes { .. }) => WireErrno::Io,
            (errno, _) => errno,
        };
        ReplyHead::error(self.style, chunks, submit.cookie, submit.offset, errno)
    }
}

/// Whether a command's replies are chunks where these were agreed upon.
fn in_chunks(number: u16) -> bool {
    matches!(number, command::READ | command::BLOCK_STATUS)
}

#[cfg(test)]
#[path = "transmission_tests.rs"]
mod tests;
