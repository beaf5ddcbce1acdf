//! The one error of this crate: where, which field, what was found, what was expected, what to do.
//!
//! Display reads like `GPT header at 512: header CRC is 0x1f2e3d4c, expected 0x9a8b7c6d; REMEDY`, or, for text,
//! `dm table, line 3: length is 0, expected at least 1 sector`. Found values that come out of an image are escaped
//! when the error is made, so that an error can be printed as it is.

use std::fmt;
use std::io;

/// What kind of mistake it is: for callers that act upon it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes contradict the format.
    Invalid,
    /// The bytes follow the format, but are more than this crate is willing to read (each such limit is a named
    /// constant).
    Limit,
    /// The bytes follow the format, and use a part of it that is not supported.
    Unsupported,
    /// The bytes could not be read.
    Io(io::ErrorKind),
}

/// Where in the input the mistake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Bytes from the start of the source.
    Byte(u64),
    /// Line of a text, counted from 1.
    Line(u64),
}

/// What is wrong with an input, in terms of the one who has to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FormatError {
    /// What kind of mistake.
    pub kind: ErrorKind,
    /// The structure that is wrong, in the words of its format: `GPT header`.
    pub place: &'static str,
    /// Where that structure (or the field) lies.
    pub position: Position,
    /// The field of it: `header CRC`.
    pub field: &'static str,
    /// What the field holds.
    pub found: String,
    /// What it should hold, as a phrase that follows "expected".
    pub expected: String,
    /// What was done or what can be done about it.
    pub remedy: Option<Box<str>>,
}

impl FormatError {
    /// Bytes at `offset` that contradict the format.
    pub fn invalid(
        place: &'static str,
        offset: u64,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::new(ErrorKind::Invalid, place, Position::Byte(offset), field, found, expected)
    }

    /// Bytes at `offset` that exceed a limit of this crate.
    pub fn limit(
        place: &'static str,
        offset: u64,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::new(ErrorKind::Limit, place, Position::Byte(offset), field, found, expected)
    }

    /// A line of text that is wrong.
    pub fn line(
        kind: ErrorKind,
        place: &'static str,
        line: u64,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::new(kind, place, Position::Line(line), field, found, expected)
    }

    /// Bytes at `offset` that the source could not give.
    pub fn unreadable(place: &'static str, offset: u64, error: &io::Error) -> Self {
        let kind = ErrorKind::Io(error.kind());
        Self::new(kind, place, Position::Byte(offset), "read", error, "its bytes")
    }

    fn new(
        kind: ErrorKind,
        place: &'static str,
        position: Position,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        let (found, expected) = (found.to_string(), expected.to_string());
        Self { kind, place, position, field, found, expected, remedy: None }
    }

    /// The same error with what was, or can be, done about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string().into_boxed_str());
        self
    }

    /// Where it was found, as its message begins.
    pub fn place_and_position(&self) -> String {
        match self.position {
            Position::Byte(offset) => format!("{} at {offset}", self.place),
            Position::Line(line) => format!("{}, line {line}", self.place),
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place_and_position())?;
        match self.kind {
            ErrorKind::Io(_) => write!(f, ": cannot be read: {}", self.found)?,
            _ => write!(f, ": {} is {}, expected {}", self.field, self.found, self.expected)?,
        }
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_place_field_found_expected_and_remedy() {
        let error = FormatError::invalid("GPT header", 512, "header CRC", "0x1f2e3d4c", "0x9a8b7c6d")
            .with_remedy("the backup at 1048064 was used instead");
        assert_eq!(
            error.to_string(),
            "GPT header at 512: header CRC is 0x1f2e3d4c, expected 0x9a8b7c6d; \
             the backup at 1048064 was used instead"
        );
    }

    #[test]
    fn an_error_in_text_names_the_line() {
        let error = FormatError::line(ErrorKind::Invalid, "dm table", 3, "length", 0, "at least 1 sector");
        assert_eq!(error.to_string(), "dm table, line 3: length is 0, expected at least 1 sector");
    }

    #[test]
    fn an_unreadable_place_keeps_the_kind_of_the_io_error() {
        let error = FormatError::unreadable("MBR", 0, &io::Error::from(io::ErrorKind::UnexpectedEof));
        assert_eq!(error.kind, ErrorKind::Io(io::ErrorKind::UnexpectedEof));
        assert_eq!(error.to_string(), "MBR at 0: cannot be read: unexpected end of file");
    }
}
