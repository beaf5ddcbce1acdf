//! Makes text out of an image safe to print.
//!
//! A partition name, a command name in a trace or a mark in a log is whatever somebody wrote there: a line feed would
//! forge a line of our output, an escape sequence would command the reader's terminal, and a bidirectional override
//! would turn the line round.

/// `text` with every control character, bidirectional control, line or paragraph separator and backslash written as
/// an escape (`\n`, `\u{1b}`, `\\`). What has none of these comes back unchanged.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || c.is_control() || turns_the_line(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn turns_the_line(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_command_a_terminal_is_escaped_and_the_rest_is_kept() {
        assert_eq!(escape("root ümläut 数"), "root ümläut 数");
        assert_eq!(escape("a\nb\x1b[2J\\"), "a\\nb\\u{1b}[2J\\\\");
        assert_eq!(escape("\u{202e}gpj.exe\u{9b}0m"), "\\u{202e}gpj.exe\\u{9b}0m");
    }
}
