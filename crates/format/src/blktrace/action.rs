//! What happened to an I/O: an act, with the categories of the I/O it happened to.
//!
//! The low 16 bits of an action are the act (bit 8 of them: a cgroup id precedes the payload), the high 16 the
//! categories. Version 8 has room for more categories (zones) above bit 32; they are kept as they are.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of categories, as in the high half of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Category(pub u16);

impl Category {
    /// A read.
    pub const READ: Category = Category(1);
    /// A write, and whatever else changes the device (discards are `WRITE | DISCARD`).
    pub const WRITE: Category = Category(1 << 1);
    /// Preceded by a flush of the device's cache.
    pub const FLUSH: Category = Category(1 << 2);
    /// Somebody waits for it.
    pub const SYNC: Category = Category(1 << 3);
    /// Queueing and merging.
    pub const QUEUE: Category = Category(1 << 4);
    /// Requeueing.
    pub const REQUEUE: Category = Category(1 << 5);
    /// Issue to the device.
    pub const ISSUE: Category = Category(1 << 6);
    /// Completion.
    pub const COMPLETE: Category = Category(1 << 7);
    /// Of a file system; all I/O but passed-through commands.
    pub const FS: Category = Category(1 << 8);
    /// A passed-through command ("packet command").
    pub const PC: Category = Category(1 << 9);
    /// Not an I/O: a [`Note`].
    pub const NOTIFY: Category = Category(1 << 10);
    /// Read-ahead.
    pub const AHEAD: Category = Category(1 << 11);
    /// Metadata of a file system.
    pub const META: Category = Category(1 << 12);
    /// A discard.
    pub const DISCARD: Category = Category(1 << 13);
    /// Data of a driver.
    pub const DRV_DATA: Category = Category(1 << 14);
    /// Forced unit access.
    pub const FUA: Category = Category(1 << 15);

    /// Whether all of `other` is in it.
    pub fn has(self, other: Category) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Category {
    type Output = Category;

    fn bitor(self, other: Category) -> Category {
        Category(self.0 | other.0)
    }
}

impl BitOrAssign for Category {
    fn bitor_assign(&mut self, other: Category) {
        self.0 |= other.0;
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Act {
    /// Q: a bio arrived.
    Queue = 1,
    /// M: merged behind a request.
    BackMerge = 2,
    /// F: merged in front of a request.
    FrontMerge = 3,
    /// G: a request was taken.
    GetRequest = 4,
    /// S: had to wait for a request.
    SleepRequest = 5,
    /// R: given back to the queue.
    Requeue = 6,
    /// D: issued to the device.
    Issue = 7,
    /// C: completed.
    Complete = 8,
    /// P: the queue was plugged.
    Plug = 9,
    /// U: unplugged, as there was enough. Payload: number of requests.
    UnplugIo = 10,
    /// UT: unplugged by a timer. Payload: number of requests.
    UnplugTimer = 11,
    /// I: inserted into the scheduler.
    Insert = 12,
    /// X: split. Payload: the sector where the second part starts.
    Split = 13,
    /// B: bounced through other memory.
    Bounce = 14,
    /// A: mapped to another device. Payload: [`super::Remap`].
    Remap = 15,
    /// Aborted; blkparse prints nothing.
    Abort = 16,
    /// Data of a driver; blkparse prints nothing.
    DriverData = 17,
}

impl Act {
    /// All of them, in the order of their numbers.
    pub const ALL: [Act; 17] = [
        Act::Queue,
        Act::BackMerge,
        Act::FrontMerge,
        Act::GetRequest,
        Act::SleepRequest,
        Act::Requeue,
        Act::Issue,
        Act::Complete,
        Act::Plug,
        Act::UnplugIo,
        Act::UnplugTimer,
        Act::Insert,
        Act::Split,
        Act::Bounce,
        Act::Remap,
        Act::Abort,
        Act::DriverData,
    ];

    /// blkparse's letters for it; `None` for what blkparse does not print.
    pub fn letters(self) -> Option<&'static str> {
        Some(match self {
            Act::Queue => "Q",
            Act::BackMerge => "M",
            Act::FrontMerge => "F",
            Act::GetRequest => "G",
            Act::SleepRequest => "S",
            Act::Requeue => "R",
            Act::Issue => "D",
            Act::Complete => "C",
            Act::Plug => "P",
            Act::UnplugIo => "U",
            Act::UnplugTimer => "UT",
            Act::Insert => "I",
            Act::Split => "X",
            Act::Bounce => "B",
            Act::Remap => "A",
            Act::Abort | Act::DriverData => return None,
        })
    }

    /// The category that the act itself brings in the kernel's traces.
    pub fn category(self) -> Category {
        match self {
            Act::Requeue => Category::REQUEUE,
            Act::Issue => Category::ISSUE,
            Act::Complete => Category::COMPLETE,
            Act::Split => Category(0),
            Act::DriverData => Category::DRV_DATA,
            _ => Category::QUEUE,
        }
    }

    fn from_number(number: u16) -> Option<Act> {
        Act::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    fn number(self) -> u16 {
        // Not between integers: the discriminants are the numbers.
        self as u16
    }
}

/// What a record says that is not about an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Note {
    /// Payload: name of the process whose pid is in the record.
    Process,
    /// Payload: seconds and nanoseconds of the wall clock, u32 each.
    Timestamp,
    /// Payload: text.
    Message,
}

/// An action as it is in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action(pub u64);

const CGROUP: u64 = 1 << 8;
const ACT_MASK: u64 = 0xffff;

impl Action {
    /// An act on an I/O of these categories; the act's own category is added.
    pub fn new(act: Act, io: Category) -> Action {
        Action(u64::from(act.number()) | u64::from((io | act.category()).0) << 16)
    }

    /// A note.
    pub fn note(note: Note) -> Action {
        let number = match note {
            Note::Process => 0,
            Note::Timestamp => 1,
            Note::Message => 2,
        };
        Action(number | u64::from(Category::NOTIFY.0) << 16)
    }

    /// The act; `None` for a note, and for a number that is not known.
    pub fn act(self) -> Option<Act> {
        if self.categories().has(Category::NOTIFY) {
            return None;
        }
        Act::from_number(self.number())
    }

    /// The note; `None` for an act, and for a number that is not known.
    pub fn as_note(self) -> Option<Note> {
        if !self.categories().has(Category::NOTIFY) {
            return None;
        }
        match self.number() {
            0 => Some(Note::Process),
            1 => Some(Note::Timestamp),
            2 => Some(Note::Message),
            _ => None,
        }
    }

    /// The categories that version 7 knows.
    pub fn categories(self) -> Category {
        Category(u16::try_from(self.0 >> 16 & 0xffff).expect("16 bits"))
    }

    /// Whether a cgroup's id precedes the payload.
    pub fn has_cgroup(self) -> bool {
        self.0 & CGROUP != 0
    }

    pub(super) fn with_cgroup(self, yes: bool) -> Action {
        Action(if yes { self.0 | CGROUP } else { self.0 & !CGROUP })
    }

    fn number(self) -> u16 {
        u16::try_from(self.0 & ACT_MASK & !CGROUP).expect("16 bits")
    }

    /// blkparse's RWBS column: what kind of I/O, `FWFSM` at most. `bytes` tells a read from nothing.
    pub fn rwbs(self, bytes: u32) -> Rwbs {
        Rwbs { categories: self.categories(), empty: bytes == 0 }
    }
}

/// Displays as blkparse's RWBS column.
#[derive(Debug, Clone, Copy)]
pub struct Rwbs {
    categories: Category,
    empty: bool,
}

impl fmt::Display for Rwbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |category| self.categories.has(category);
        let direction = match () {
            () if has(Category::DISCARD) => 'D',
            () if has(Category::WRITE) => 'W',
            () if !self.empty => 'R',
            () => 'N',
        };
        let letters = [
            (has(Category::FLUSH), 'F'),
            (true, direction),
            (has(Category::FUA), 'F'),
            (has(Category::AHEAD), 'A'),
            (has(Category::SYNC), 'S'),
            (has(Category::META), 'M'),
        ];
        let text: String = letters.iter().filter(|(on, _)| *on).map(|(_, letter)| *letter).collect();
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_and_its_number_are_the_same_both_ways() {
        for (number, act) in (1..).zip(Act::ALL) {
            assert_eq!((act.number(), Act::from_number(number)), (number, Some(act)));
        }
        assert_eq!((Act::from_number(0), Act::from_number(18)), (None, None));
    }

    #[test]
    fn the_rwbs_column_has_all_letters_in_the_order_of_blkparse() {
        let io = Category::FLUSH | Category::WRITE | Category::FUA | Category::SYNC | Category::META;
        assert_eq!(Action::new(Act::Queue, io).rwbs(0).to_string(), "FWFSM");
        let read = Action::new(Act::Queue, Category::READ | Category::AHEAD);
        assert_eq!((read.rwbs(512).to_string(), read.rwbs(0).to_string()), ("RA".into(), "NA".into()));
        let discard = Action::new(Act::Issue, Category::WRITE | Category::DISCARD);
        assert_eq!(format!("{:>3}", discard.rwbs(0)), "  D");
    }
}
