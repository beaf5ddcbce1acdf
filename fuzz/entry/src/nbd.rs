//! An NBD session, from its first byte: the server's state machine, without sockets.

use blockwork_engine::VolumeId;
use blockwork_export::nbd::session::{
    CloseReason, Handshake, Kind, Progress, Step, Submit, TlsState, Transmission,
};
use blockwork_export::nbd::{Export, Exports};
use blockwork_format::nbd::{PAYLOAD_MAX, Request, Style, WireErrno, transmission_flags};

use crate::input::Input;
use crate::{assert_printable, reached};

const SIZE: u64 = 5 << 30;
/// A name that must not leave the server before TLS.
const NAME: &str = "confidential";

pub(crate) const TLS: u8 = 1;
pub(crate) const READ_ONLY: u8 = 2;
/// Payloads are not in the input: they come as zeros, as long as they should be.
pub(crate) const PAYLOADS: u8 = 4;
/// What follows in the input: bytes as they are.
pub(crate) const BYTES: u8 = 0;
/// An option with its magic number mended.
pub(crate) const OPTION: u8 = 1;
/// A request with its magic number mended, near the export.
pub(crate) const REQUEST: u8 = 2;
/// The server is going down.
pub(crate) const SHUTDOWN: u8 = 3;

/// A session. The input: flags u8; then items that begin with a u8, modulo 4: bytes (count u8, the bytes), an option (its
/// number u8, count u8, data), a request (flags u8, command u8, offset u16, scale u8, length u16, scale u8), or the word
/// that the server goes down.
pub fn nbd(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    let mut session = Session::new(flags);
    while !input.0.is_empty() {
        let kind = input.u8() % 4;
        let bytes = match kind {
            BYTES => {
                let count = input.u8();
                input.bytes(count.into()).to_vec()
            }
            OPTION => option(&mut input),
            REQUEST => session.request(&mut input),
            _ => {
                session.shut_down();
                continue;
            }
        };
        if session.feed(&bytes).is_err() {
            reached("closed");
            return;
        }
    }
}

fn option(input: &mut Input<'_>) -> Vec<u8> {
    let (number, count) = (input.u8(), input.u8());
    let data = input.bytes(count.into());
    let len = u32::try_from(data.len()).expect("at most 255");
    [&b"IHAVEOPT"[..], &u32::from(number).to_be_bytes(), &len.to_be_bytes(), data].concat()
}

enum Phase {
    Handshake(Box<Handshake>),
    Transmission(Transmission),
}

struct Session {
    phase: Option<Phase>,
    clear: bool,
    payloads: bool,
    pending: Vec<u8>,
    skip: u64,
    /// The header that was given last.
    header: Option<Request>,
}

impl Session {
    fn new(flags: u8) -> Session {
        let read_only = if flags & READ_ONLY != 0 { transmission_flags::READ_ONLY } else { 0 };
        let export = |name: &str| Export {
            name: name.to_owned(),
            description: format!("{name} data"),
            volume: VolumeId(0),
            size: SIZE,
            flags: transmission_flags::HAS_FLAGS | transmission_flags::SEND_TRIM | read_only,
            preferred_block: 4096,
            logical_block: 512,
        };
        let exports = Exports::of([export(NAME), export("b")]).expect("two names");
        let tls = if flags & TLS != 0 { TlsState::Required } else { TlsState::Off };
        let mut out = Vec::new();
        let handshake = Handshake::new(exports, tls, &mut out);
        assert_eq!(out.len(), 18);
        Session {
            phase: Some(Phase::Handshake(Box::new(handshake))),
            clear: tls == TlsState::Required,
            payloads: flags & PAYLOADS != 0,
            pending: Vec::new(),
            skip: 0,
            header: None,
        }
    }

    fn shut_down(&mut self) {
        match self.phase.as_mut().expect("a phase") {
            Phase::Handshake(handshake) => handshake.shut_down(),
            Phase::Transmission(transmission) => transmission.shut_down(),
        }
    }

    /// A request in the form that was agreed upon.
    fn request(&self, input: &mut Input<'_>) -> Vec<u8> {
        let (flags, command) = (u16::from(input.u8()), u16::from(input.u8()));
        let (offset, scale) = (u64::from(input.u16()), u32::from(input.u8() % 48));
        let (len, len_scale) = (u64::from(input.u16()), u32::from(input.u8() % 48));
        let request =
            Request { flags, command, cookie: 0x1122_3344, offset: offset << scale, len: len << len_scale };
        match &self.phase {
            Some(Phase::Transmission(session)) if session.style() == Style::Extended => {
                request.encode_extended().to_vec()
            }
            _ => Request { len: request.len & 0xffff_ffff, ..request }
                .encode_compact()
                .expect("short")
                .to_vec(),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.skip > 0 {
                let take = usize::try_from(self.skip).expect("a length").min(rest.len());
                self.skip -= take as u64;
                at += take;
                continue;
            }
            at += match self.phase.take().expect("a phase") {
                Phase::Handshake(handshake) => self.handshake(*handshake, rest)?,
                Phase::Transmission(session) => self.transmission(session, rest)?,
            };
        }
        Ok(())
    }

    fn handshake(&mut self, mut handshake: Handshake, rest: &[u8]) -> Result<usize, CloseReason> {
        let mut out = Vec::new();
        let (taken, progress) = handshake.feed(rest, 0, &mut out);
        let tells = out.windows(NAME.len()).any(|window| window == NAME.as_bytes());
        assert!(!self.clear || !tells, "told in clear text: {out:?}");
        self.phase = Some(match progress {
            Progress::More => {
                assert!(taken > 0, "nothing taken of {} bytes", rest.len());
                Phase::Handshake(Box::new(handshake))
            }
            Progress::Later => unreachable!("no export is withheld here"),
            Progress::StartTls => {
                reached("tls");
                assert!(self.clear && taken == rest.len());
                self.clear = false;
                Phase::Handshake(Box::new(handshake.after_tls()))
            }
            Progress::Go(transmission) => {
                reached("go");
                assert!(!self.clear, "chosen in clear text");
                Phase::Transmission(transmission)
            }
            Progress::Close(reason) => {
                assert_printable(&reason.to_string());
                return Err(reason);
            }
        });
        Ok(taken)
    }

    fn transmission(&mut self, mut session: Transmission, rest: &[u8]) -> Result<usize, CloseReason> {
        let wanted = session.wanted();
        assert!(wanted > 0 && wanted <= 32);
        let take = (wanted - self.pending.len()).min(rest.len());
        self.pending.extend_from_slice(&rest[..take]);
        if self.pending.len() == wanted {
            let bytes = std::mem::take(&mut self.pending);
            self.header = match wanted {
                28 => bytes.first_chunk().and_then(|bytes| Request::decode_compact(bytes).ok()),
                32 => bytes.first_chunk().and_then(|bytes| Request::decode_extended(bytes).ok()),
                _ => self.header,
            };
            let step = session.request(&bytes)?;
            self.step(&session, step)?;
        }
        self.phase = Some(Phase::Transmission(session));
        Ok(take)
    }

    fn step(&mut self, session: &Transmission, step: Step) -> Result<(), CloseReason> {
        let header = self.header.expect("a request has a header");
        match step {
            Step::More => {
                reached("status payload");
                assert_eq!(session.wanted(), 12);
            }
            Step::Disconnect => return Err(CloseReason::Disconnected),
            Step::Answer(refusal) => {
                reached("answered");
                check_cookie(refusal.reply.as_bytes(), header.cookie);
                assert!(refusal.skip <= PAYLOAD_MAX);
                self.skip = if self.payloads { 0 } else { refusal.skip.into() };
            }
            Step::Submit(submit) => {
                check_submit(session, &submit, &header);
                if matches!(submit.kind, Kind::Write { .. }) && !self.payloads {
                    self.skip = submit.len;
                }
            }
        }
        Ok(())
    }
}

fn check_submit(session: &Transmission, submit: &Submit, header: &Request) {
    reached("submitted");
    let end = submit.offset.checked_add(submit.len).expect("an end");
    assert!(end <= session.export().size);
    assert!(submit.len > 0 || submit.kind == Kind::Flush);
    assert_eq!((submit.cookie, submit.offset), (header.cookie, header.offset));
    if matches!(submit.kind, Kind::Read | Kind::Write { .. }) {
        assert!(submit.len <= u64::from(PAYLOAD_MAX));
    }
    let writes = matches!(submit.kind, Kind::Write { .. } | Kind::Trim { .. } | Kind::WriteZeroes { .. });
    assert!(!writes || !session.export().has(transmission_flags::READ_ONLY));
    check_cookie(session.success(submit).as_bytes(), header.cookie);
    check_cookie(session.failure(submit, WireErrno::Io).as_bytes(), header.cookie);
}

fn check_cookie(reply: &[u8], cookie: u64) {
    assert!(reply.len() >= 16);
    assert_eq!(reply[8..16], cookie.to_be_bytes());
}
