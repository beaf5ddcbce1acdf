//! Rules for a single file: its head, its length, and words that have no place in it.

use crate::{Finding, Text};

/// A longer source file is about more than one thing.
pub const LINES_MAX: usize = 800;

/// Longest file: larger ones are data, which a test makes when it needs them.
pub const BYTES_MAX: usize = 256 * 1024;

/// Words by themselves, and what to do. In two halves each, so that this file does not break its own rule.
const WORDS: [(&str, &str, &str); 4] = [
    ("TO", "DO", "do it, or write down in ARCHITECTURE.md that it is not done and why"),
    ("FIX", "ME", "mend it"),
    ("XX", "X", "mend it, or say what is special here"),
    ("HA", "CK", "say what is special here"),
];

/// Calls that stand for code that is not there.
const CALLS: [(&str, &str, &str); 3] = [
    ("todo", "!(", "write it"),
    ("unimplemented", "!(", "write it, or return an error that says what is not supported"),
    ("dbg", "!(", "left over from debugging"),
];

/// Folders of one person's or one machine's.
const PLACES: [(&str, &str); 4] = [("/work", "/"), ("/root", "/"), ("/home", "/"), ("/Users", "/")];

/// What is wrong with one file.
pub fn check(file: &Text) -> Vec<Finding> {
    let mut found = Vec::new();
    if file.path.ends_with("Cargo.lock") {
        return found;
    }
    if file.text.len() > BYTES_MAX {
        let what = format!("{} bytes, limit {BYTES_MAX}: make it where it is needed", file.text.len());
        found.push(Finding::at(&file.path, 0, what));
    }
    if file.is("rs") || file.is("py") {
        found.extend(length(file));
    }
    if file.is("rs") {
        found.extend(head(file));
        found.extend(calls(file));
        found.extend(ignored(file));
    }
    found.extend(words(file));
    found
}

/// The first lines of each source file say what it is for.
fn head(file: &Text) -> Option<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    let said = first.strip_prefix("//!").is_some_and(|said| !said.trim().is_empty());
    (!said).then(|| Finding::at(&file.path, 1, "no head comment: open with `//! ` and what this is for"))
}

fn length(file: &Text) -> Option<Finding> {
    let lines = file.text.lines().count();
    (lines > LINES_MAX).then(|| {
        Finding::at(&file.path, 0, format!("{lines} lines, limit {LINES_MAX}: split it by what it is about"))
    })
}

fn calls(file: &Text) -> Vec<Finding> {
    let mut found = Vec::new();
    for (start, end, remedy) in CALLS {
        let call = format!("{start}{end}");
        let lines = file.lines().filter(|(_, line)| line.contains(&call));
        found.extend(lines.map(|(number, _)| Finding::at(&file.path, number, format!("`{call}`: {remedy}"))));
    }
    found
}

/// A test that does not run proves nothing. Only the second process of another test may be passed over, where that
/// test starts it.
fn ignored(file: &Text) -> Vec<Finding> {
    let bare = ["#[igno", "re]"].concat();
    let with_reason = ["#[igno", "re = "].concat();
    let started = file.text.contains("\"--include-ignored\"") || file.text.contains("\"--ignored\"");
    file.lines()
        .filter(|(_, line)| line.contains(&bare) || (line.contains(&with_reason) && !started))
        .map(|(number, _)| Finding::at(&file.path, number, "a test that nobody runs: run it or delete it"))
        .collect()
}

fn words(file: &Text) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for (start, end, remedy) in WORDS {
            let word = format!("{start}{end}");
            if has_word(line, &word) {
                found.push(Finding::at(&file.path, number, format!("{word}: {remedy}")));
            }
        }
        for (start, end) in PLACES {
            let place = format!("{start}{end}");
            // A folder of the root, not a part of a longer path or address.
            if has_start(line, &place) {
                let what = format!("`{place}` is a folder of one machine: the text must hold anywhere");
                found.push(Finding::at(&file.path, number, what));
            }
        }
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether the line has the word with no letter, digit or underscore around it.
fn has_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
        let after = bytes.get(at + word.len()).is_some_and(|after| is_word(*after));
        !before && !after
    })
}

/// Whether the line has an absolute path that starts like this.
fn has_start(line: &str, place: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(place).any(|(at, _)| {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        !before.is_some_and(|before| is_word(before) || b".-}/*".contains(&before))
    })
}
