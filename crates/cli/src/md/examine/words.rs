//! Words and numbers as mdadm prints them.

use std::fmt::Write;

/// Lines `key : value`, keys flush right.
#[derive(Default)]
pub(super) struct Lines(String);

impl Lines {
    pub(super) fn line(&mut self, key: &str, value: impl std::fmt::Display) {
        self.with_width(15, key, value);
    }

    pub(super) fn line_if(&mut self, holds: bool, key: &str, value: impl std::fmt::Display) {
        if holds {
            self.line(key, value);
        }
    }

    /// Some of mdadm's keys end elsewhere.
    pub(super) fn with_width(&mut self, width: usize, key: &str, value: impl std::fmt::Display) {
        self.text(&format!("{key:>width$} : {value}\n"));
    }

    pub(super) fn gap(&mut self) {
        self.text("\n");
    }

    pub(super) fn text(&mut self, text: &str) {
        self.0.push_str(text);
    }

    pub(super) fn done(self) -> String {
        self.0
    }
}

/// Whether an array was stopped, or idle, when this was written.
pub(super) fn state(is_clean: bool) -> &'static str {
    if is_clean { "clean" } else { "active" }
}

/// ` (47.00 MiB 49.28 MB)`; nothing below 5,000 KiB.
pub(super) fn in_brackets(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes < 5000 << 10 {
        return String::new();
    }
    let (unit, binary, decimal) = match bytes {
        _ if bytes < 2 * GIB => ('M', 1 << 20, 1_000_000),
        _ if bytes < 2048 * GIB => ('G', GIB, 1_000_000_000),
        _ => ('T', 1024 * GIB, 1_000_000_000_000),
    };
    // Hundredths, rounded as mdadm does it.
    let binary = (u128::from(bytes) * 200 / u128::from(binary)).div_ceil(2);
    let decimal = (bytes / (decimal / 200)).div_ceil(2);
    let hundredths = |n: u128| format!("{}.{:02}", n / 100, n % 100);
    format!(" ({} {unit}iB {} {unit}B)", hundredths(binary), hundredths(decimal.into()))
}

/// The layout of a RAID5 or 6 by its number.
pub(super) fn parity_layout(number: u32) -> &'static str {
    match number {
        0 => "left-asymmetric",
        1 => "right-asymmetric",
        2 => "left-symmetric",
        3 => "right-symmetric",
        4 => "parity-first",
        5 => "parity-last",
        8 => "ddf-zero-restart",
        9 => "ddf-N-restart",
        10 => "ddf-N-continue",
        16 => "left-asymmetric-6",
        17 => "right-asymmetric-6",
        18 => "left-symmetric-6",
        19 => "right-symmetric-6",
        20 => "parity-first-6",
        _ => "-unknown-",
    }
}

/// A moment in seconds since 1970: `Sat Nov 21 02:41:00 2026 UTC`.
pub(super) fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the day that some have more comes last: 400 of them have 146,097 days.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12);
    let year = era * 400 + year + u64::from(month < 2);
    let name =
        |names: &[&'static str], nth: u64| usize::try_from(nth).ok().and_then(|n| names.get(n).copied());
    let mut out = String::new();
    let (weekday, month) = (name(&DAYS, days % 7), name(&MONTHS, month));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let _ = write!(out, "{} {} {day:>2} ", weekday.unwrap_or_default(), month.unwrap_or_default());
    let _ = write!(out, "{hour:02}:{minute:02}:{second:02} {year} UTC");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 1970 UTC"),
            (951_782_399, "Mon Feb 28 23:59:59 2000 UTC"),
            (951_782_400, "Tue Feb 29 00:00:00 2000 UTC"),
            (951_868_800, "Wed Mar  1 00:00:00 2000 UTC"),
            (4_107_542_400, "Mon Mar  1 00:00:00 2100 UTC"),
            (1_767_225_599, "Wed Dec 31 23:59:59 2025 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn sizes_are_rounded_as_mdadm_rounds_them() {
        for (bytes, text) in [
            (4999 << 10, ""),
            (49_283_072, " (47.00 MiB 49.28 MB)"),
            (398_458_880, " (380.00 MiB 398.46 MB)"),
            (2 << 30, " (2.00 GiB 2.15 GB)"),
        ] {
            assert_eq!(in_brackets(bytes), text);
        }
    }
}
