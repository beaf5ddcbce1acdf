//! Prints records as blkparse does: `%D %2c %8s %5T.%9t %5p %2a %3d`, and what belongs to the act.
//!
//! Invariants: (1) one record makes at most one line; (2) names and messages cannot break a line or command a
//! terminal: they are escaped; (3) at most [`NAMES_MAX`] names are kept, whatever the trace holds.

use std::collections::HashMap;
use std::fmt::{self, Write};

use super::action::{Act, Category, Note};
use super::record::{Device, Record};
use crate::escape;

/// Processes whose names are kept; 32768 is Linux' default number of pids.
pub const NAMES_MAX: usize = 65_536;

/// What blkparse calls a process that no note named.
const NO_NAME: &str = "(null)";

/// Prints the records of a trace, which it must see in order: notes name the processes.
#[derive(Debug, Clone, Default)]
pub struct Formatter {
    names: HashMap<u32, String>,
    genesis_ns: Option<u64>,
}

impl Formatter {
    /// Times count from the first record that is printed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Times count from `time_ns`; for several files, which have one beginning.
    pub fn since(time_ns: u64) -> Self {
        Self { genesis_ns: Some(time_ns), ..Self::default() }
    }

    /// Gives a process a name, as a note in the trace does.
    pub fn name(&mut self, pid: u32, name: &str) {
        if self.names.len() < NAMES_MAX || self.names.contains_key(&pid) {
            self.names.insert(pid, escape(name));
        }
    }

    /// Appends the line of a record to `out`, with its line feed. Nothing for what blkparse does not print: notes other
    /// than messages, aborts, data of drivers, and acts that are not known.
    pub fn line(&mut self, record: &Record<'_>, out: &mut String) {
        match record.action.as_note() {
            Some(Note::Process) => self.name(record.pid, &record.payload_text()),
            Some(Note::Message) => {
                // blkparse prints neither who said it nor when in the order of events.
                let anonymous = Record { pid: 0, sequence: 0, ..record.clone() };
                let message = escape(&record.payload_text());
                self.print(&anonymous, "m", |_, out| writeln!(out, "{message}"), out);
            }
            Some(Note::Timestamp) => {}
            None => {
                if let Some(act) = record.action.act()
                    && let Some(letters) = act.letters()
                {
                    self.print(record, letters, |name, out| tail(record, act, name, out), out);
                }
            }
        }
    }

    fn print(
        &mut self,
        record: &Record<'_>,
        letters: &str,
        tail: impl FnOnce(&str, &mut String) -> fmt::Result,
        out: &mut String,
    ) {
        let time = record.time_ns.wrapping_sub(*self.genesis_ns.get_or_insert(record.time_ns));
        let name = self.names.get(&record.pid).map_or(NO_NAME, String::as_str);
        let device =
            record.payload_remap().filter(|_| letters == "A").map_or(record.device, |remap| remap.to);
        head(record, device, time, letters, out).and_then(|()| tail(name, out)).expect("a String takes all");
    }
}

fn head(record: &Record<'_>, device: Device, time: u64, letters: &str, out: &mut String) -> fmt::Result {
    write!(
        out,
        "{:3},{:<3} {:2} {:8} {:5}.{:09} {:5} {letters:>2} {:>3} ",
        device.major(),
        device.minor(),
        record.cpu,
        record.sequence,
        time / 1_000_000_000,
        time % 1_000_000_000,
        record.pid,
        record.action.rwbs(record.bytes),
    )
}

/// What follows the head, by act.
fn tail(record: &Record<'_>, act: Act, name: &str, out: &mut String) -> fmt::Result {
    let (sector, sectors) = (record.sector, record.sectors());
    let number = record.payload_number().unwrap_or(0);
    match act {
        Act::Complete | Act::Requeue => {
            if record.action.categories().has(Category::PC) {
                command(record, out)?;
            } else if sectors > 0 {
                write!(out, "{sector} + {sectors} ")?;
            } else {
                write!(out, "{sector} ")?;
            }
            writeln!(out, "[{}]", record.error)
        }
        Act::Issue | Act::Insert | Act::Queue | Act::Bounce
            if record.action.categories().has(Category::PC) =>
        {
            write!(out, "{} ", record.bytes)?;
            command(record, out)?;
            writeln!(out, "[{name}]")
        }
        Act::Plug => writeln!(out, "[{name}]"),
        // blkparse prints the low 32 bits of the number.
        Act::UnplugIo | Act::UnplugTimer => writeln!(out, "[{name}] {}", number & 0xffff_ffff),
        Act::Split => writeln!(out, "{sector} / {} [{name}]", number & 0xffff_ffff),
        Act::Remap => match record.payload_remap() {
            Some(remap) => writeln!(out, "{sector} + {sectors} <- ({}) {}", remap.from, remap.sector_from),
            None => writeln!(out, "{sector} + {sectors} <- (0,0) 0"),
        },
        _ if sectors > 0 => writeln!(out, "{sector} + {sectors} [{name}]"),
        _ => writeln!(out, "[{name}]"),
    }
}

/// The bytes of a passed-through command, up to where only zeros follow.
fn command(record: &Record<'_>, out: &mut String) -> fmt::Result {
    if record.payload.is_empty() {
        return Ok(());
    }
    let zeros_from = record.payload.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    out.write_str("(")?;
    for (i, byte) in record.payload.iter().enumerate() {
        if i > 0 {
            out.write_str(" ")?;
        }
        write!(out, "{byte:02x}")?;
        if i == zeros_from {
            out.write_str(" ..")?;
            break;
        }
    }
    out.write_str(") ")
}
