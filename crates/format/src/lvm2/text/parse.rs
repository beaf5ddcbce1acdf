//! Reads the text: a tokenizer by hand, and a parser that goes down one level for each section.

use super::print::is_decimal;
use super::{DEPTH_MAX, ENTRIES_MAX, Entry, KEY_BYTES_MAX, Node, Section, Value};
use crate::lvm2::TEXT_BYTES_MAX;
use crate::{ErrorKind, FormatError, escape};

pub(in crate::lvm2) const PLACE: &str = "LVM2 metadata";

/// What LVM itself reads where `creation_time` exceeds 63 bits: 32-bit versions before 2.02.169 wrote such numbers.
const CREATION_TIME_OF_A_BUG: i64 = 1_527_120_000;

impl Section {
    /// The tree of a text, up to its end or to the NUL that ends it in a metadata area.
    ///
    /// # Errors
    ///
    /// Where the syntax is wrong, a section is twice in another one, something follows a NUL, or a limit of this
    /// module is exceeded. The error names the line.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::parse_noting(text).map(|(tree, _)| tree)
    }

    /// The same, and a key that has a value again, if there is one: of its values the first counts.
    ///
    /// # Errors
    ///
    /// As for [`Section::parse`].
    pub fn parse_noting(text: &[u8]) -> Result<(Self, Option<FormatError>), FormatError> {
        if text.len() > TEXT_BYTES_MAX {
            let (found, expected) = (text.len(), format!("at most {TEXT_BYTES_MAX} bytes"));
            return Err(FormatError::line(ErrorKind::Limit, PLACE, 1, "length", found, expected));
        }
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let mut parser = Parser { text: &text[..end], at: 0, line: 1, entries: 0, again: None };
        let tree = parser.section(0)?;
        if text[end..].iter().any(|byte| *byte != 0) {
            return Err(parser.invalid("the text", "a NUL and more behind it", "an end at the NUL"));
        }
        Ok((tree, parser.again))
    }
}

struct Parser<'a> {
    /// Without a NUL.
    text: &'a [u8],
    at: usize,
    line: u64,
    /// Keys, sections and elements so far.
    entries: usize,
    /// A value that was ignored.
    again: Option<FormatError>,
}

impl Parser<'_> {
    /// Entries up to the `}` of a section, or up to the end of the text at depth 0.
    fn section(&mut self, depth: usize) -> Result<Section, FormatError> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                None if depth == 0 => break,
                None => return Err(self.invalid("a section", "the end of the text", "a } that closes it")),
                Some(b'}') if depth > 0 => {
                    self.at += 1;
                    break;
                }
                Some(_) => {
                    self.count()?;
                    entries.push(self.entry(depth)?);
                }
            }
        }
        self.drop_repeated(&mut entries)?;
        entries.shrink_to_fit();
        Ok(Section { entries })
    }

    /// Of several values of a key the first is kept, as LVM does it.
    fn drop_repeated(&mut self, entries: &mut Vec<Entry>) -> Result<(), FormatError> {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|nth| &entries[*nth].key);
        let mut is_kept = vec![true; entries.len()];
        for same in order.chunk_by(|a, b| entries[*a].key == entries[*b].key) {
            let [first, others @ ..] = same else { unreachable!("no chunk is empty") };
            let Some(second) = others.first() else { continue };
            let again = || said_again(&entries[*first], &entries[*second]);
            if same.iter().any(|nth| entries[*nth].node.as_section().is_some()) {
                return Err(again());
            }
            self.again.get_or_insert_with(|| again().with_remedy("the first one counts, as for LVM"));
            others.iter().for_each(|nth| is_kept[*nth] = false);
        }
        let mut is_kept = is_kept.into_iter();
        entries.retain(|_| is_kept.next().expect("one for each"));
        Ok(())
    }

    fn entry(&mut self, depth: usize) -> Result<Entry, FormatError> {
        let line = self.line;
        let key = self.key()?;
        self.skip_space();
        let node = match self.peek() {
            Some(b'{') if depth == DEPTH_MAX => {
                let expected = format!("at most {DEPTH_MAX}");
                return Err(self.wrong(ErrorKind::Limit, "nesting of sections", depth + 1, expected));
            }
            Some(b'{') => {
                self.at += 1;
                Node::Section(self.section(depth + 1)?)
            }
            Some(b'=') => {
                self.at += 1;
                self.content(&key)?
            }
            _ => {
                let found = self.found();
                return Err(self.invalid("what follows a key", found, "= or {"));
            }
        };
        Ok(Entry { key, line, node })
    }

    fn key(&mut self) -> Result<String, FormatError> {
        let bytes = match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.string(quote)?,
            Some(b'[' | b']' | b',' | b'=' | b'{' | b'}') | None => Vec::new(),
            Some(_) => self.bare().to_vec(),
        };
        if bytes.is_empty() {
            let found = self.found();
            return Err(self.invalid("a key", found, "a name"));
        }
        if bytes.len() > KEY_BYTES_MAX {
            let expected = format!("at most {KEY_BYTES_MAX}");
            return Err(self.wrong(ErrorKind::Limit, "bytes of a key", bytes.len(), expected));
        }
        let good = |key: &String| !key.contains(|c: char| c == '/' || c.is_control());
        String::from_utf8(bytes)
            .map_err(|error| error.into_bytes())
            .and_then(|key| if good(&key) { Ok(key) } else { Err(key.into_bytes()) })
            .map_err(|bytes| {
                let found = escape(&String::from_utf8_lossy(&bytes));
                self.invalid("a key", found, "UTF-8 without / and control characters")
            })
    }

    /// What stands behind a `=`.
    fn content(&mut self, key: &str) -> Result<Node, FormatError> {
        self.skip_space();
        if self.peek() != Some(b'[') {
            return self.value(key).map(Node::Value);
        }
        self.at += 1;
        let mut values = Vec::new();
        loop {
            self.skip_space();
            if self.peek() == Some(b']') {
                break;
            }
            self.count()?;
            values.push(self.value(key)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => {
                    let found = self.found();
                    return Err(self.invalid("what follows an element of an array", found, ", or ]"));
                }
            }
        }
        self.at += 1;
        values.shrink_to_fit();
        Ok(Node::Array(values))
    }

    fn value(&mut self, key: &str) -> Result<Value, FormatError> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.string(quote).map(Value::String),
            Some(b'0'..=b'9' | b'+' | b'-' | b'.') => self.number(key),
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' || byte == b'@' => {
                let bytes = self.bare();
                if bytes.iter().any(|byte| matches!(byte, b',' | b'[' | b']' | b'"' | b'\'')) {
                    let found = escape(&String::from_utf8_lossy(bytes));
                    return Err(self.invalid("a string without quotes", found, "no punctuation in it"));
                }
                Ok(Value::String(bytes.to_vec()))
            }
            _ => {
                let found = self.found();
                Err(self.invalid("a value", found, "a number, a string or an array of them"))
            }
        }
    }

    fn number(&mut self, key: &str) -> Result<Value, FormatError> {
        let start = self.at;
        self.at += 1;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit() || byte == b'.') {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).expect("signs, digits and points");
        if text.contains('.') {
            if !is_decimal(text) {
                return Err(self.invalid("a number", text, "digits and one point"));
            }
            return Ok(Value::Decimal(text.to_owned()));
        }
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        // The C convention: a leading zero means octal.
        let radix = if digits.len() > 1 && digits.starts_with('0') { 8 } else { 10 };
        let signed = format!("{}{digits}", if text.starts_with('-') { "-" } else { "" });
        match i64::from_str_radix(&signed, radix) {
            Ok(n) => Ok(Value::Integer(n)),
            Err(error) if key == "creation_time" && *error.kind() == std::num::IntErrorKind::PosOverflow => {
                Ok(Value::Integer(CREATION_TIME_OF_A_BUG))
            }
            Err(error) => Err(self.invalid("a number", shortened(text), format!("63 bits ({error})"))),
        }
    }

    /// The string that begins here, without its quotes and escapes. In single quotes nothing is escaped.
    fn string(&mut self, quote: u8) -> Result<Vec<u8>, FormatError> {
        let opened_in = self.line;
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            let Some(byte) = self.peek() else {
                let expected = format!("a closing {} (opened in line {opened_in})", char::from(quote));
                return Err(self.invalid("a string", "the end of the text", expected));
            };
            self.at += 1;
            match (byte, self.peek()) {
                (b'\\', Some(next)) if quote == b'"' => {
                    self.at += 1;
                    if !matches!(next, b'"' | b'\\') {
                        bytes.push(byte);
                    }
                    self.line += u64::from(next == b'\n');
                    bytes.push(next);
                }
                _ if byte == quote => return Ok(bytes),
                _ => {
                    self.line += u64::from(byte == b'\n');
                    bytes.push(byte);
                }
            }
        }
    }

    /// What comes up to the next space, `#`, `=`, `{` or `}`.
    fn bare(&mut self) -> &[u8] {
        let ends = |byte: &u8| is_space(*byte) || matches!(byte, b'#' | b'=' | b'{' | b'}');
        let rest = &self.text[self.at..];
        let bytes = &rest[..rest.iter().position(ends).unwrap_or(rest.len())];
        self.at += bytes.len();
        bytes
    }

    /// Goes past white space and comments.
    fn skip_space(&mut self) {
        while let Some(byte) = self.peek() {
            if byte == b'#' {
                let rest = &self.text[self.at..];
                self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            } else if is_space(byte) {
                self.line += u64::from(byte == b'\n');
                self.at += 1;
            } else {
                break;
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn count(&mut self) -> Result<(), FormatError> {
        self.entries += 1;
        if self.entries <= ENTRIES_MAX {
            return Ok(());
        }
        let found = format!("more than {ENTRIES_MAX} (after {} of {} bytes)", self.at, self.text.len());
        Err(self.wrong(ErrorKind::Limit, "keys and elements", found, format!("at most {ENTRIES_MAX}")))
    }

    /// What is here, for an error.
    fn found(&self) -> String {
        match self.text[self.at..].split(|byte| is_space(*byte)).next() {
            Some([]) | None => {
                if self.at == self.text.len() { "the end of the text" } else { "nothing" }.into()
            }
            Some(word) => {
                format!("\"{}\"", shortened(&escape(&String::from_utf8_lossy(&word[..word.len().min(40)]))))
            }
        }
    }

    fn invalid(
        &self,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> FormatError {
        self.wrong(ErrorKind::Invalid, field, found, expected)
    }

    fn wrong(
        &self,
        kind: ErrorKind,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> FormatError {
        FormatError::line(kind, PLACE, self.line, field, found, expected)
    }
}

fn shortened(text: &str) -> String {
    const CHARACTERS: usize = 40;
    let mut short: String = text.chars().take(CHARACTERS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// What C's `isspace` says in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

fn said_again(first: &Entry, again: &Entry) -> FormatError {
    let found = format!("\"{}\" again, as in line {}", escape(&again.key), first.line);
    FormatError::line(ErrorKind::Invalid, PLACE, again.line, "a key", found, "each key once")
}
