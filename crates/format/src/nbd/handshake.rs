//! The handshake: greeting, options, and replies to them.

use super::{
    Fields, GREETING_MAGIC, Malformed, NAME_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC, QUERIES_MAX,
    handshake_flags, info, option_reply_type,
};
use crate::bytes::{array, length};

/// The server's first 18 bytes.
pub fn greeting(flags: u16) -> [u8; 18] {
    let mut out = [0; 18];
    out[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
    out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    out[16..].copy_from_slice(&flags.to_be_bytes());
    out
}

/// The client's answer to the greeting: its handshake flags, of which there must be no unknown one.
pub fn client_flags(bytes: &[u8; 4]) -> Result<u16, Malformed> {
    const KNOWN: u16 = handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES;
    let found = u32::from_be_bytes(*bytes);
    match u16::try_from(found) {
        Ok(flags) if flags & !KNOWN == 0 => Ok(flags),
        _ => Err(Malformed::ClientFlags { found, expected: KNOWN.into() }),
    }
}

/// What precedes an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Its number.
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// From the wire.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<OptionHeader, Malformed> {
        let found = u64::from_be_bytes(array(bytes, 0));
        if found != OPTION_MAGIC {
            return Err(Malformed::Magic { what: "an option", found, expected: OPTION_MAGIC });
        }
        Ok(OptionHeader {
            option: u32::from_be_bytes(array(bytes, 8)),
            len: u32::from_be_bytes(array(bytes, 12)),
        })
    }

    /// To the wire.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// The data of INFO and GO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export's name; empty for the default one.
    pub name: &'a [u8],
    infos: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// From the wire.
    pub fn decode(data: &'a [u8]) -> Result<InfoRequest<'a>, Malformed> {
        let mut fields = Fields { rest: data };
        let name = fields.text("the export's name")?;
        let count = fields.u16("the number of information requests")?;
        let infos = fields.bytes("the list of information requests", usize::from(count) * 2)?;
        fields.end("what follows the information requests")?;
        Ok(InfoRequest { name, infos })
    }

    /// Whether a fact was asked for.
    pub fn wants(&self, info: u16) -> bool {
        self.infos.chunks_exact(2).any(|pair| pair == info.to_be_bytes())
    }
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export's name; empty for the default one.
    pub name: &'a [u8],
    count: u32,
    queries: &'a [u8],
}

impl<'a> MetaRequest<'a> {
    /// From the wire; all queries were looked at.
    pub fn decode(data: &'a [u8]) -> Result<MetaRequest<'a>, Malformed> {
        let mut fields = Fields { rest: data };
        let name = fields.text("the export's name")?;
        let count = fields.u32("the number of queries")?;
        if count > QUERIES_MAX {
            return Err(Malformed::Limit {
                field: "the number of queries",
                found: count.into(),
                limit: QUERIES_MAX.into(),
            });
        }
        let queries = fields.rest;
        for _ in 0..count {
            fields.text("a query")?;
        }
        fields.end("what follows the queries")?;
        Ok(MetaRequest { name, count, queries })
    }

    /// The queries, in order.
    pub fn queries(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut fields = Fields { rest: self.queries };
        (0..self.count).map_while(move |_| fields.text("a query").ok())
    }
}

/// Appends a reply to an option. `data` is shorter than 4 GiB: it is ours.
pub fn option_reply(out: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|part| part.len()).sum();
    let len = u32::try_from(len).expect("a reply of ours is short");
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(reply.to_be_bytes());
    out.extend(len.to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends an error with a text for people.
pub fn option_error(out: &mut Vec<u8>, option: u32, reply: u32, text: &str) {
    debug_assert!(reply & option_reply_type::ERROR != 0);
    let text = &text.as_bytes()[..text.len().min(NAME_MAX)];
    option_reply(out, option, reply, &[text]);
}

/// Appends one entry of the answer to LIST.
pub fn server_entry(out: &mut Vec<u8>, option: u32, name: &str, description: &str) {
    let len = u32::try_from(length(name.len())).expect("a name of ours is short");
    option_reply(
        out,
        option,
        option_reply_type::SERVER,
        &[&len.to_be_bytes(), name.as_bytes(), description.as_bytes()],
    );
}

/// Appends size and flags.
pub fn info_export(out: &mut Vec<u8>, option: u32, size: u64, flags: u16) {
    let data: [&[u8]; 3] = [&info::EXPORT.to_be_bytes(), &size.to_be_bytes(), &flags.to_be_bytes()];
    option_reply(out, option, option_reply_type::INFO, &data);
}

/// Appends a name or a description.
pub fn info_text(out: &mut Vec<u8>, option: u32, kind: u16, text: &str) {
    option_reply(out, option, option_reply_type::INFO, &[&kind.to_be_bytes(), text.as_bytes()]);
}

/// Appends the request sizes, bytes.
pub fn info_block_size(out: &mut Vec<u8>, option: u32, minimum: u32, preferred: u32, maximum: u32) {
    let data: [&[u8]; 4] = [
        &info::BLOCK_SIZE.to_be_bytes(),
        &minimum.to_be_bytes(),
        &preferred.to_be_bytes(),
        &maximum.to_be_bytes(),
    ];
    option_reply(out, option, option_reply_type::INFO, &data);
}

/// Appends a metadata context.
pub fn meta_context(out: &mut Vec<u8>, option: u32, id: u32, name: &str) {
    option_reply(out, option, option_reply_type::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
}

/// Appends the answer to EXPORT_NAME, which has no header.
pub fn export_name_reply(out: &mut Vec<u8>, size: u64, flags: u16, zeroes: bool) {
    out.extend(size.to_be_bytes());
    out.extend(flags.to_be_bytes());
    if zeroes {
        out.extend([0; 124]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_is_the_one_in_the_protocol() {
        assert_eq!(&greeting(3)[..], b"NBDMAGICIHAVEOPT\0\x03");
    }

    #[test]
    fn unknown_client_flags_are_refused() {
        assert_eq!(client_flags(&[0, 0, 0, 3]), Ok(3));
        assert_eq!(client_flags(&[0, 0, 0, 0]), Ok(0));
        assert!(client_flags(&[0, 0, 0, 4]).is_err());
        assert!(client_flags(&[1, 0, 0, 0]).is_err());
    }

    #[test]
    fn an_option_header_survives_the_wire() {
        let header = OptionHeader { option: 7, len: 0xffff_ffff };
        assert_eq!(OptionHeader::decode(&header.encode()), Ok(header));
        let mut bad = header.encode();
        bad[0] ^= 1;
        assert!(matches!(OptionHeader::decode(&bad), Err(Malformed::Magic { .. })));
    }

    #[test]
    fn an_info_request_must_fit_its_option_exactly() {
        let good = b"\0\0\0\x02ab\0\x02\0\x01\0\x03";
        let request = InfoRequest::decode(good).unwrap();
        assert_eq!(request.name, b"ab");
        assert!(
            request.wants(info::BLOCK_SIZE) && request.wants(info::NAME) && !request.wants(info::DESCRIPTION)
        );
        for cut in 0..good.len() {
            assert!(InfoRequest::decode(&good[..cut]).is_err(), "{cut}");
        }
        assert!(InfoRequest::decode(&[&good[..], b"x"].concat()).is_err());
        assert!(InfoRequest::decode(b"\xff\xff\xff\xffab\0\0").is_err());
    }

    #[test]
    fn queries_are_counted_limited_and_complete() {
        let good = b"\0\0\0\x01a\0\0\0\x02\0\0\0\x05base:\0\0\0\0";
        let request = MetaRequest::decode(good).unwrap();
        assert_eq!(request.name, b"a");
        assert_eq!(request.queries().collect::<Vec<_>>(), [&b"base:"[..], b""]);
        for cut in 0..good.len() {
            assert!(MetaRequest::decode(&good[..cut]).is_err(), "{cut}");
        }
        let many = [&b"\0\0\0\0"[..], &(QUERIES_MAX + 1).to_be_bytes()].concat();
        assert!(matches!(MetaRequest::decode(&many), Err(Malformed::Limit { .. })));
    }

    #[test]
    fn a_name_beyond_the_limit_is_refused() {
        let name = vec![b'n'; NAME_MAX + 1];
        let data = [&u32::try_from(name.len()).unwrap().to_be_bytes()[..], &name, &[0, 0]].concat();
        assert!(matches!(InfoRequest::decode(&data), Err(Malformed::Limit { .. })));
    }

    #[test]
    fn replies_have_the_lengths_that_the_protocol_names() {
        let mut out = Vec::new();
        info_export(&mut out, 7, 0x1122, 0x0102);
        assert_eq!(out.len(), 20 + 12);
        assert_eq!(out[16..20], 12u32.to_be_bytes());
        out.clear();
        info_block_size(&mut out, 7, 1, 4096, 1 << 25);
        assert_eq!(out.len(), 20 + 14);
        out.clear();
        export_name_reply(&mut out, 1, 2, true);
        assert_eq!(out.len(), 134);
        out.clear();
        server_entry(&mut out, 3, "ab", "c");
        assert_eq!(out[20..], *b"\0\0\0\x02abc");
    }
}
