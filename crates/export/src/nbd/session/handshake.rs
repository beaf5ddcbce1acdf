//! The handshake: from the greeting to the choice of an export.

use super::{ALLOCATION_CONTEXT, CloseReason, OPTION_SKIP_MAX, OPTIONS_MAX, Transmission};
use crate::nbd::exports::{Export, Exports};
use crate::offered::{NotOpened, Opened};
use blockwork_format::nbd::{
    InfoRequest, Malformed, MetaRequest, OPTION_MAX, OptionHeader, PAYLOAD_MAX, Style, base_allocation,
    client_flags, export_name_reply, greeting, handshake_flags, info, info_block_size, info_export,
    info_text, meta_context, option, option_error, option_reply, option_reply_type as reply, server_entry,
    transmission_flags,
};

/// Where a session stands with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsState {
    /// Not offered.
    Off,
    /// Demanded, not yet there: nothing but STARTTLS and ABORT is served.
    Required,
    /// There.
    On,
}

/// What a call of [`Handshake::feed`] came to.
#[derive(Debug)]
pub enum Progress {
    /// More input is needed, or (if some is left) another call.
    More,
    /// The export that the client asks for cannot be opened just now: another call in a moment, with the rest.
    Later,
    /// The answer in `out` is the last thing in clear text; make TLS, then go on with [`Handshake::after_tls`].
    StartTls,
    /// The client has chosen.
    Go(Transmission),
    /// Send what is in `out`, and close.
    Close(CloseReason),
}

/// What the bytes at hand are.
#[derive(Clone, Copy, Debug)]
enum Stage {
    ClientFlags,
    Header,
    Data(OptionHeader),
}

/// The server's side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    exports: Exports,
    tls: TlsState,
    stage: Stage,
    no_zeroes: bool,
    style: Style,
    /// The export for which `base:allocation` was chosen.
    allocation_of: Option<Opened<Export>>,
    /// The start of what `stage` wants; its rest has not come yet.
    partial: Vec<u8>,
    /// Bytes of an oversize option that are still to be thrown away.
    skip: usize,
    options: u32,
    shutdown: bool,
}

impl Handshake {
    /// A new session; appends the greeting to `out`.
    pub fn new(exports: Exports, tls: TlsState, out: &mut Vec<u8>) -> Handshake {
        out.extend(greeting(handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES));
        Handshake {
            exports,
            tls,
            stage: Stage::ClientFlags,
            no_zeroes: false,
            style: Style::Simple,
            allocation_of: None,
            partial: Vec::new(),
            skip: 0,
            options: 0,
            shutdown: false,
        }
    }

    /// The session after STARTTLS. Nothing that was said in clear text counts, but for the handshake flags: they are
    /// not said again, and decide of nothing but the padding after EXPORT_NAME.
    #[must_use]
    pub fn after_tls(self) -> Handshake {
        Handshake {
            tls: TlsState::On,
            stage: Stage::Header,
            style: Style::Simple,
            allocation_of: None,
            partial: Vec::new(),
            skip: 0,
            options: 0,
            ..self
        }
    }

    /// From now on no export can be chosen.
    pub fn shut_down(&mut self) {
        self.shutdown = true;
    }

    /// How many bytes the next call of [`Handshake::feed`] can take: more need not be put together for it. 0: it has been put off.
    pub fn wanted(&self) -> usize {
        if self.skip > 0 { self.skip } else { self.stage_len() - self.partial.len() }
    }

    /// Bytes that the stage is about.
    fn stage_len(&self) -> usize {
        match self.stage {
            Stage::ClientFlags => 4,
            Stage::Header => OptionHeader::LEN,
            Stage::Data(header) => usize::try_from(header.len).unwrap_or(usize::MAX),
        }
    }

    /// Takes bytes off the front of `input`, at most one message, and appends what is to be sent to `out`; `behind`: how many bytes have come
    /// behind `input`. Call again with the rest while [`Progress::More`] comes and something was taken.
    pub fn feed(&mut self, input: &[u8], behind: usize, out: &mut Vec<u8>) -> (usize, Progress) {
        if self.skip > 0 {
            let take = self.skip.min(input.len());
            self.skip -= take;
            return (take, Progress::More);
        }
        let mut taken = 0;
        loop {
            let wanted = self.stage_len();
            let take = (wanted - self.partial.len()).min(input.len() - taken);
            self.partial.extend_from_slice(&input[taken..taken + take]);
            taken += take;
            if self.partial.len() < wanted {
                return (taken, Progress::More);
            }
            let bytes = std::mem::take(&mut self.partial);
            let stage = self.stage;
            let progress = self.complete(&bytes, out);
            self.partial = bytes;
            if matches!(progress, Ok(Some(Progress::Later))) {
                self.stage = stage;
                return (taken, Progress::Later);
            }
            self.partial.clear();
            return match progress {
                Ok(None) => continue,
                Ok(Some(Progress::StartTls)) if taken < input.len() + behind => {
                    let clear = input.len() + behind - taken;
                    (taken, Progress::Close(CloseReason::PlainTextAfterStartTls(clear)))
                }
                Ok(Some(progress)) => (taken, progress),
                Err(reason) => (taken, Progress::Close(reason)),
            };
        }
    }

    /// Takes what the stage wanted. None: the message goes on.
    fn complete(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<Progress>, CloseReason> {
        match self.stage {
            Stage::ClientFlags => {
                let flags = client_flags(bytes.first_chunk().expect("four bytes were collected"))?;
                self.no_zeroes = flags & handshake_flags::NO_ZEROES != 0;
                self.stage = Stage::Header;
                Ok(Some(Progress::More))
            }
            Stage::Header => {
                let header = OptionHeader::decode(bytes.first_chunk().expect("a header was collected"))?;
                self.header(header, out)
            }
            Stage::Data(header) => {
                self.stage = Stage::Header;
                self.option(header.option, bytes, out).map(Some)
            }
        }
    }

    /// Refuses what is too much or too long.
    fn header(&mut self, header: OptionHeader, out: &mut Vec<u8>) -> Result<Option<Progress>, CloseReason> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(CloseReason::TooManyOptions(OPTIONS_MAX));
        }
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        if len <= OPTION_MAX {
            self.stage = Stage::Data(header);
            return Ok(None);
        }
        if header.len > OPTION_SKIP_MAX || header.option == option::EXPORT_NAME {
            return Err(CloseReason::OptionTooLong(header.len));
        }
        self.skip = len;
        let refusal = if self.tls == TlsState::Required { reply::ERR_TLS_REQD } else { reply::ERR_TOO_BIG };
        option_error(out, header.option, refusal, "an option's data is limited to 64 KiB");
        Ok(Some(Progress::More))
    }

    fn option(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Progress, CloseReason> {
        if self.tls == TlsState::Required && !matches!(number, option::STARTTLS | option::ABORT) {
            if number == option::EXPORT_NAME {
                return Err(CloseReason::NoSuchExport);
            }
            option_error(
                out,
                number,
                reply::ERR_TLS_REQD,
                "this server talks of its exports only after STARTTLS",
            );
            return Ok(Progress::More);
        }
        match number {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                option_reply(out, number, reply::ACK, &[]);
                return Ok(Progress::Close(CloseReason::Aborted));
            }
            option::STARTTLS => return Ok(self.start_tls(data, out)),
            option::INFO | option::GO => return Ok(self.info(number, data, out)),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                return Ok(self.meta_context(number, data, out));
            }
            option::LIST => self.list(data, out),
            option::STRUCTURED_REPLY => self.structured_reply(data, out),
            option::EXTENDED_HEADERS => self.extended_headers(data, out),
            _ => option_error(out, number, reply::ERR_UNSUP, "this server does not know that option"),
        }
        Ok(Progress::More)
    }

    fn export_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<Progress, CloseReason> {
        if self.style == Style::Extended {
            return Err(CloseReason::ExportNameAfterExtended);
        }
        let export = match self.exports.find(name) {
            _ if self.shutdown => return Err(CloseReason::NoSuchExport),
            Ok(export) => export,
            Err(NotOpened::NotNow) => return Ok(Progress::Later),
            Err(NotOpened::None) => return Err(CloseReason::NoSuchExport),
        };
        let transmission = self.choose(export);
        export_name_reply(out, transmission.export().size, transmission.flags(), !self.no_zeroes);
        Ok(Progress::Go(transmission))
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Progress {
        let refusal = match self.tls {
            TlsState::Off => (reply::ERR_UNSUP, "this server has no TLS"),
            TlsState::On => (reply::ERR_INVALID, "TLS is there already"),
            TlsState::Required if !data.is_empty() => (reply::ERR_INVALID, "STARTTLS has no data"),
            TlsState::Required => {
                option_reply(out, option::STARTTLS, reply::ACK, &[]);
                return Progress::StartTls;
            }
        };
        option_error(out, option::STARTTLS, refusal.0, refusal.1);
        Progress::More
    }

    fn list(&mut self, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            return option_error(out, option::LIST, reply::ERR_INVALID, "LIST has no data");
        }
        for (name, description) in self.exports.listed() {
            server_entry(out, option::LIST, &name, &description);
        }
        option_reply(out, option::LIST, reply::ACK, &[]);
    }

    fn info(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        let request = match InfoRequest::decode(data) {
            Ok(request) => request,
            Err(malformed) => {
                refuse(out, number, &malformed);
                return Progress::More;
            }
        };
        let found = self.exports.find(request.name);
        if matches!(found, Err(NotOpened::None)) {
            option_error(out, number, reply::ERR_UNKNOWN, "there is no export of that name");
            return Progress::More;
        }
        if self.shutdown {
            option_error(out, number, reply::ERR_SHUTDOWN, "the server is going down");
            return Progress::More;
        }
        let Ok(export) = found else { return Progress::Later };
        let transmission = self.choose(export);
        let export = transmission.export();
        info_export(out, number, export.size, transmission.flags());
        if request.wants(info::NAME) {
            info_text(out, number, info::NAME, &export.name);
        }
        if request.wants(info::DESCRIPTION) && !export.description.is_empty() {
            info_text(out, number, info::DESCRIPTION, &export.description);
        }
        if request.wants(info::BLOCK_SIZE) {
            info_block_size(out, number, 1, export.preferred_block, PAYLOAD_MAX);
        }
        option_reply(out, number, reply::ACK, &[]);
        if number == option::GO { Progress::Go(transmission) } else { Progress::More }
    }

    fn structured_reply(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let refusal = match self.style {
            _ if !data.is_empty() => (reply::ERR_INVALID, "STRUCTURED_REPLY has no data"),
            Style::Structured => (reply::ERR_INVALID, "structured replies are agreed upon already"),
            Style::Extended => (reply::ERR_EXT_HEADER_REQD, "extended headers are agreed upon already"),
            Style::Simple => {
                self.style = Style::Structured;
                return option_reply(out, option::STRUCTURED_REPLY, reply::ACK, &[]);
            }
        };
        option_error(out, option::STRUCTURED_REPLY, refusal.0, refusal.1);
    }

    fn extended_headers(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let refusal = match self.style {
            _ if !data.is_empty() => "EXTENDED_HEADERS has no data",
            Style::Extended => "extended headers are agreed upon already",
            Style::Simple | Style::Structured => {
                self.style = Style::Extended;
                return option_reply(out, option::EXTENDED_HEADERS, reply::ACK, &[]);
            }
        };
        option_error(out, option::EXTENDED_HEADERS, reply::ERR_INVALID, refusal);
    }

    fn meta_context(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        let set = number == option::SET_META_CONTEXT;
        if set {
            // Replaced even where the option fails.
            self.allocation_of = None;
            if self.style == Style::Simple {
                option_error(out, number, reply::ERR_INVALID, "metadata contexts need structured replies");
                return Progress::More;
            }
        }
        let request = match MetaRequest::decode(data) {
            Ok(request) => request,
            Err(malformed) => {
                refuse(out, number, &malformed);
                return Progress::More;
            }
        };
        let export = match self.exports.find(request.name) {
            Ok(export) => export,
            // A server that is going down has nothing to wait for.
            Err(NotOpened::NotNow) if !self.shutdown => return Progress::Later,
            Err(_) => {
                option_error(out, number, reply::ERR_UNKNOWN, "there is no export of that name");
                return Progress::More;
            }
        };
        let mut queries = request.queries().peekable();
        let all = !set && queries.peek().is_none();
        let selects = |query: &[u8]| {
            query == base_allocation::NAME.as_bytes()
                || !set && query == base_allocation::NAMESPACE.as_bytes()
        };
        if all || queries.any(selects) {
            // In a list the id means nothing, and should be zero.
            meta_context(out, number, if set { ALLOCATION_CONTEXT } else { 0 }, base_allocation::NAME);
            self.allocation_of = if set { Some(export) } else { self.allocation_of.take() };
        }
        option_reply(out, number, reply::ACK, &[]);
        Progress::More
    }

    /// The session that would follow if `export` were chosen now.
    fn choose(&self, export: Opened<Export>) -> Transmission {
        // Contexts hold for the export that they were chosen for.
        let allocation = self.allocation_of.as_ref().is_some_and(|of| of.is(&export));
        let df = if self.style == Style::Simple { 0 } else { transmission_flags::SEND_DF };
        let payload = if self.style == Style::Extended && allocation {
            transmission_flags::BLOCK_STATUS_PAYLOAD
        } else {
            0
        };
        let flags = export.flags | df | payload;
        Transmission::new(export, self.style, flags, allocation)
    }
}

fn refuse(out: &mut Vec<u8>, number: u32, malformed: &Malformed) {
    let kind =
        if matches!(malformed, Malformed::Limit { .. }) { reply::ERR_TOO_BIG } else { reply::ERR_INVALID };
    option_error(out, number, kind, &malformed.to_string());
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
