//! Writes a tree as LVM writes it: the same blank lines, and arrays of areas with a line for each area.

use super::{Entry, Node, Section, Style, Value};

/// Depth of the keys of: the text, the VG, a list of PVs or LVs, one PV or LV, a segment.
const TEXT: usize = 0;
const VG: usize = 1;
const LIST: usize = 2;
const MEMBER: usize = 3;
const SEGMENT: usize = 4;

impl Section {
    /// The text of this tree, which is that of a whole text. No NUL at its end.
    ///
    /// # Panics
    ///
    /// Where a key or a string is one that [`Section::parse`] would not return, such as one with a NUL in it.
    pub fn print(&self, style: Style) -> Vec<u8> {
        let mut out = Printer { out: Vec::new(), style };
        out.section(self, TEXT);
        out.out
    }
}

struct Printer {
    out: Vec<u8>,
    style: Style,
}

impl Printer {
    fn section(&mut self, section: &Section, depth: usize) {
        for entry in &section.entries {
            if blank_before(entry, depth) {
                self.out.push(b'\n');
            }
            self.entry(entry, depth);
            if blank_after(entry, depth) {
                self.out.push(b'\n');
            }
        }
    }

    fn entry(&mut self, entry: &Entry, depth: usize) {
        self.indent(depth);
        self.key(&entry.key);
        match &entry.node {
            Node::Section(section) => {
                self.out.extend(b" {\n");
                self.section(section, depth + 1);
                if depth == TEXT {
                    let lists = ["physical_volumes", "logical_volumes"];
                    let blanks = match lists.map(|list| section.section(list).is_some()) {
                        [true, false] => 2,
                        [true, true] => 1,
                        [false, _] => 0,
                    };
                    self.out.extend(std::iter::repeat_n(b'\n', blanks));
                }
                self.indent(depth);
                self.out.push(b'}');
            }
            Node::Value(value) => {
                self.out.extend(b" = ");
                self.value(value);
            }
            Node::Array(values) => self.array(values, areas_per_line(entry, depth), depth),
        }
        self.out.push(b'\n');
    }

    /// `per_line`: how many values are on a line, where they are not all on one.
    fn array(&mut self, values: &[Value], per_line: Option<usize>, depth: usize) {
        self.out.extend(b" = [");
        for (i, value) in values.iter().enumerate() {
            let opens = per_line.is_some_and(|count| i.is_multiple_of(count));
            if i > 0 {
                self.out.extend(if opens { &b","[..] } else { b", " });
            }
            if opens {
                self.out.push(b'\n');
                self.indent(depth + 1);
            }
            self.value(value);
        }
        if per_line.is_some() && !values.is_empty() {
            self.out.push(b'\n');
            self.indent(depth);
        }
        self.out.push(b']');
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Integer(n) => self.out.extend(n.to_string().as_bytes()),
            Value::Decimal(text) => {
                assert!(is_decimal(text), "{text:?} is no number with a point");
                self.out.extend(text.as_bytes());
            }
            Value::String(bytes) => self.quoted(bytes),
        }
    }

    fn key(&mut self, key: &str) {
        assert!(!key.is_empty() && !key.contains(|c: char| c == '/' || c.is_control()), "{key:?} is no key");
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '.' | '-');
        if key.chars().all(plain) {
            self.out.extend(key.as_bytes());
        } else {
            self.quoted(key.as_bytes());
        }
    }

    fn quoted(&mut self, bytes: &[u8]) {
        assert!(!bytes.contains(&0), "a string with a NUL would end the text");
        self.out.push(b'"');
        for byte in bytes {
            if matches!(byte, b'"' | b'\\') {
                self.out.push(b'\\');
            }
            self.out.push(*byte);
        }
        self.out.push(b'"');
    }

    fn indent(&mut self, depth: usize) {
        if self.style == Style::File {
            self.out.extend(std::iter::repeat_n(b'\t', depth));
        }
    }
}

/// Digits around exactly one point, perhaps with a sign.
pub(super) fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (points, rest): (Vec<u8>, Vec<u8>) = digits.bytes().partition(|byte| *byte == b'.');
    points.len() == 1 && !rest.is_empty() && rest.iter().all(u8::is_ascii_digit)
}

/// How many values LVM writes on a line of an array of areas: a name and its extent, or the two LVs of a RAID's leg.
fn areas_per_line(entry: &Entry, depth: usize) -> Option<usize> {
    match entry.key.as_str() {
        "stripes" | "mirrors" | "raids" if depth == SEGMENT => Some(2),
        "raid0_lvs" if depth == SEGMENT => Some(1),
        _ => None,
    }
}

fn blank_before(entry: &Entry, depth: usize) -> bool {
    let key = entry.key.as_str();
    match (&entry.node, depth) {
        (Node::Section(_), VG | LIST) => true,
        (Node::Section(_), SEGMENT) => key == "message1",
        (Node::Value(_), TEXT) => matches!(key, "contents" | "description" | "creation_host"),
        (Node::Value(_), VG) => key == "allocation_policy",
        (Node::Array(_), _) => areas_per_line(entry, depth).is_some(),
        _ => false,
    }
}

fn blank_after(entry: &Entry, depth: usize) -> bool {
    let key = entry.key.as_str();
    match (&entry.node, depth) {
        (Node::Value(_), TEXT) => key == "creation_time",
        (Node::Value(_), MEMBER) => matches!(key, "device" | "segment_count"),
        (Node::Value(_), SEGMENT) => key == "extent_count",
        _ => false,
    }
}
