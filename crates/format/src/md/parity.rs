//! Layouts of RAID4, 5 and 6: which member of a row has which chunk of data.
//!
//! A row is a chunk of each member, at the same place of all. One or two of them are parity, whose place turns from row to row, or does not.
//! The data are in order over the members that are left (asymmetric), or begin behind the parity and go on with the first member
//! (symmetric).
//!
//! | number | RAID5 | RAID6 |
//! | --- | --- | --- |
//! | 0, 1 | left, right asymmetric | the same, Q behind P |
//! | 2, 3 | left, right symmetric | the same |
//! | 4, 5 | parity first, last | the same |
//! | 8, 9, 10 | | as DDF has it: rotating zero restart, N restart, N continue (Q before P) |
//! | 16 to 20 | | as RAID5's 0 to 4 over all members but the last, which has Q |
//!
//! RAID4 is parity last, whatever its number. Source, for the facts: the kernel's `drivers/md/raid5.c`, `raid5.h`.

use std::fmt;
use std::ops::RangeInclusive;

use super::{Level, NotALayout};

/// The largest number of a layout.
const NUMBER_MAX: u32 = 20;

/// Most members of an array: as many as there are roles.
const RAID_DISKS_MAX: u16 = super::RAID_DISKS_MAX as u16; // 1920

/// Where the first parity of a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It begins with the last member and goes down.
    Left,
    /// It begins with the last but one.
    LeftNext,
    /// It begins with the first and goes up.
    Right,
    /// It stays at the first.
    First,
    /// It stays at the last.
    Last,
}

/// A layout of a level with parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParityLayout {
    level: Level,
    number: u32,
    /// Members.
    disks: u16,
    /// Those among which the parity turns, the first ones.
    turning: u16,
    /// Parities that turn.
    parities: u16,
    turn: Turn,
    is_symmetric: bool,
    /// The second parity is before the first.
    is_second_before: bool,
}

impl ParityLayout {
    /// The layout with that number; none: there is no such one, or too few members for it.
    pub fn new(level: Level, number: u32, disks: u16) -> Option<ParityLayout> {
        use Turn::{First, Last, Left, LeftNext, Right};
        let of_five = |number| match number {
            0 => Some((Left, false)),
            1 => Some((Right, false)),
            2 => Some((Left, true)),
            3 => Some((Right, true)),
            4 => Some((First, false)),
            5 => Some((Last, false)),
            _ => None,
        };
        let (turn, is_symmetric) = match (level, number) {
            (Level::Raid4, _) => (Last, false),
            (Level::Raid5, number) => of_five(number)?,
            (Level::Raid6, 8) => (Right, false),
            (Level::Raid6, 9) => (LeftNext, false),
            (Level::Raid6, 10) => (Left, true),
            (Level::Raid6, 16..=20) => of_five(number - 16)?,
            (Level::Raid6, number) => of_five(number)?,
            _ => return None,
        };
        let is_last_alone = level == Level::Raid6 && (16..=20).contains(&number);
        let all = if level == Level::Raid6 { 2 } else { 1 };
        let parities = if is_last_alone { 1 } else { all };
        (disks > all).then(|| ParityLayout {
            level,
            number,
            disks,
            turning: if is_last_alone { disks - 1 } else { disks },
            parities,
            turn,
            is_symmetric,
            is_second_before: level == Level::Raid6 && number == 10,
        })
    }

    /// How many members a new array of the level can have, as for mdadm. Q tells the data of no more apart; Linux takes no RAID6 of three.
    pub fn members_of_new(level: Level) -> RangeInclusive<u16> {
        if level == Level::Raid6 { 4..=256 } else { 2..=RAID_DISKS_MAX }
    }

    /// The layout of that level that mdadm means by a name, as [`fmt::Display`] has it, or a short one: `ls`. Those of DDF are layouts of
    /// their own in a RAID6 only.
    ///
    /// # Errors
    ///
    /// Another name, or as [`ParityLayout::new`].
    pub fn from_name(level: Level, name: &str, disks: u16) -> Result<ParityLayout, NotALayout> {
        let full = match (level, name) {
            (_, "la") | (Level::Raid5, "ddf-N-restart") => "left-asymmetric",
            (_, "ra") | (Level::Raid5, "ddf-zero-restart") => "right-asymmetric",
            (_, "ls" | "default") | (Level::Raid5, "ddf-N-continue") => "left-symmetric",
            (_, "rs") => "right-symmetric",
            _ => name,
        };
        let mut layouts = (0..=NUMBER_MAX).filter_map(|number| ParityLayout::new(level, number, disks));
        layouts.find(|layout| layout.to_string() == full).ok_or_else(|| {
            const OF_FIVE: &str = "left-symmetric (ls), left-asymmetric (la), right-symmetric (rs), right-asymmetric (ra), parity-first or \
                                   parity-last";
            const OF_SIX: &str = "; ddf-zero-restart, ddf-N-restart or ddf-N-continue; or left-symmetric-6 and the like, parity-last-6 not \
                                  among them";
            let of_six = if level == Level::Raid6 { OF_SIX } else { "" };
            NotALayout { expected: format!("{OF_FIVE}{of_six}") }
        })
    }

    /// Its number.
    pub fn encode(&self) -> u32 {
        self.number
    }

    /// 4, 5 or 6.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Members.
    pub fn disks(&self) -> u16 {
        self.disks
    }

    /// Chunks of data in a row.
    pub fn data_disks(&self) -> u16 {
        self.turning - self.parities
    }

    /// How many members it can do without: chunks of parity in a row.
    pub fn parities(&self) -> u16 {
        self.disks - self.data_disks()
    }

    /// The member that has the first of the parities that turn.
    #[inline]
    fn first_parity(&self, row: u64) -> u16 {
        let all = self.turning;
        let turned = |row: u64| (row % u64::from(all)) as u16; // less than `all`
        match self.turn {
            Turn::Left => all - 1 - turned(row),
            Turn::LeftNext => all - 1 - turned(row + 1),
            Turn::Right => turned(row),
            Turn::First => 0,
            Turn::Last => all - self.parities,
        }
    }

    /// The members that have a row's parities: P, the sum of its data, and Q, the sum of each times 2 to the power that
    /// [`ParityLayout::exponent`] tells, which RAID6 has.
    pub fn parity(&self, row: u64) -> (u16, Option<u16>) {
        let p = self.first_parity(row);
        let q = match (self.level, self.parities) {
            (Level::Raid6, 1) => Some(self.turning),
            (Level::Raid6, _) if self.is_second_before => Some((p + self.turning - 1) % self.turning),
            (Level::Raid6, _) => Some((p + 1) % self.turning),
            _ => None,
        };
        (p, q)
    }

    /// Which power of 2 in GF(2^8) a member's data of a row are multiplied with in Q. The first data behind Q, of all members in a ring, have
    /// power zero, the next ones one; in the layouts of DDF it is the member's own number, parities or not.
    pub fn exponent(&self, row: u64, member: u16) -> u16 {
        let (p, q) = self.parity(row);
        let Some(q) = q.filter(|_| !matches!(self.number, 8..=10)) else { return member };
        let behind_q = |member: u16| (member + self.disks - q - 1) % self.disks;
        behind_q(member) - u16::from(behind_q(p) < behind_q(member))
    }

    /// The member that has a row's chunk of data of that number.
    #[inline]
    pub fn member(&self, row: u64, nth: u16) -> u16 {
        let (all, first) = (self.turning, self.first_parity(row));
        let behind = if self.parities == 2 && !self.is_second_before { 2 } else { 1 };
        if self.is_symmetric {
            return (first + behind + nth) % all;
        }
        // The second one of a pair whose first is at the end is at the beginning.
        if self.parities == 2 && first == all - 1 {
            return nth + 1;
        }
        if nth >= first { nth + behind } else { nth }
    }
}

impl fmt::Display for ParityLayout {
    /// As mdadm does: `left-symmetric`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = [
            "left-asymmetric",
            "right-asymmetric",
            "left-symmetric",
            "right-symmetric",
            "parity-first",
            "parity-last",
        ];
        let number = if self.level == Level::Raid4 { 5 } else { self.number };
        f.write_str(match number {
            8 => "ddf-zero-restart",
            9 => "ddf-N-restart",
            10 => "ddf-N-continue",
            _ => NAMES[(number % 16) as usize], // as `new` has checked
        })?;
        if number >= 16 { f.write_str("-6") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters for data from a on, p and q for parities.
    fn row(level: Level, number: u32, disks: u16, row: u64) -> String {
        let layout = ParityLayout::new(level, number, disks).unwrap();
        let mut members = vec!['.'; usize::from(disks)];
        for (nth, letter) in (0..layout.data_disks()).zip('a'..) {
            let place = &mut members[usize::from(layout.member(row, nth))];
            assert_eq!(*place, '.', "no two in one place");
            *place = letter;
        }
        let (p, q) = layout.parity(row);
        for (parity, letter) in [(Some(p), 'p'), (q, 'q')] {
            let Some(parity) = parity else { continue };
            let place = &mut members[usize::from(parity)];
            assert_eq!(*place, '.', "nor a parity in that of data");
            *place = letter;
        }
        members.into_iter().collect()
    }

    fn rows(level: Level, number: u32, disks: u16) -> String {
        (0..u64::from(disks)).map(|nth| row(level, number, disks, nth)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rows_are_as_the_layouts_have_them() {
        for (number, expected) in [
            (0, "abcp abpc apbc pabc"),
            (1, "pabc apbc abpc abcp"),
            (2, "abcp bcpa cpab pabc"),
            (3, "pabc cpab bcpa abcp"),
            (4, "pabc pabc pabc pabc"),
            (5, "abcp abcp abcp abcp"),
        ] {
            assert_eq!(rows(Level::Raid5, number, 4), expected, "{number}");
        }
        assert_eq!(rows(Level::Raid4, 2, 3), "abp abp abp");
        for (number, expected) in [
            (0, "qabp abpq apqb pqab"),
            (1, "pqab apqb abpq qabp"),
            (2, "qabp abpq bpqa pqab"),
            (3, "pqab bpqa abpq qabp"),
            (4, "pqab pqab pqab pqab"),
            (5, "abpq abpq abpq abpq"),
            (8, "pqab apqb abpq qabp"),
            (9, "abpq apqb pqab qabp"),
            (10, "abqp bqpa qpab pabq"),
            (16, "abpq apbq pabq abpq"),
            (18, "abpq bpaq pabq abpq"),
            (20, "pabq pabq pabq pabq"),
        ] {
            assert_eq!(rows(Level::Raid6, number, 4), expected, "{number}");
        }
    }

    #[test]
    fn in_q_data_are_weighted_in_order_behind_it_and_by_members_in_the_layouts_of_ddf() {
        let weights = |number: u32, row: u64| {
            let layout = ParityLayout::new(Level::Raid6, number, 5).unwrap();
            let mut weights = vec![None; 5];
            for nth in 0..layout.data_disks() {
                let member = layout.member(row, nth);
                weights[usize::from(member)] = Some(layout.exponent(row, member));
            }
            weights
        };
        // Left symmetric: P on the fourth in the second row, Q behind it.
        assert_eq!(weights(2, 1), [Some(0), Some(1), Some(2), None, None]);
        assert_eq!(weights(0, 3), [Some(2), None, None, Some(0), Some(1)]);
        assert_eq!(weights(5, 3), [Some(0), Some(1), Some(2), None, None]);
        assert_eq!(weights(16, 2), [Some(0), None, Some(1), Some(2), None], "P on the second, Q on the last");
        assert_eq!(weights(8, 1), [Some(0), None, None, Some(3), Some(4)]);
        assert_eq!(weights(10, 1), [Some(0), Some(1), None, None, Some(4)]);
    }

    #[test]
    fn layouts_are_called_as_mdadm_calls_them() {
        let name = |level, number| ParityLayout::new(level, number, 5).unwrap().to_string();
        assert_eq!(name(Level::Raid4, 0), "parity-last");
        assert_eq!(name(Level::Raid5, 2), "left-symmetric");
        assert_eq!(name(Level::Raid6, 8), "ddf-zero-restart");
        assert_eq!(name(Level::Raid6, 17), "right-asymmetric-6");
        assert_eq!(name(Level::Raid6, 20), "parity-first-6");
    }

    #[test]
    fn the_names_of_mdadm_are_taken_and_no_others() {
        for level in [Level::Raid5, Level::Raid6] {
            let named = |name: &str| ParityLayout::from_name(level, name, 5).map(|layout| layout.encode());
            for number in 0..32 {
                let Some(layout) = ParityLayout::new(level, number, 5) else { continue };
                assert_eq!(named(&layout.to_string()), Ok(number), "{layout}");
            }
            let short = ["la", "ra", "ls", "rs", "default"].map(named);
            assert_eq!(short, [Ok(0), Ok(1), Ok(2), Ok(3), Ok(2)]);
            let ddf = ["ddf-zero-restart", "ddf-N-restart", "ddf-N-continue"].map(named);
            assert_eq!(
                ddf,
                if level == Level::Raid5 { [Ok(1), Ok(0), Ok(2)] } else { [Ok(8), Ok(9), Ok(10)] }
            );
            for wrong in ["", "n2", "LS", "ls ", "left", "parity-last-6", "2", "ls-6"] {
                assert!(named(wrong).is_err(), "{wrong}");
            }
        }
        assert_eq!(ParityLayout::from_name(Level::Raid4, "parity-last", 5).unwrap().encode(), 0);
        for (name, of_six) in [("left-symmetric-6", 18), ("parity-first-6", 20)] {
            assert!(ParityLayout::from_name(Level::Raid5, name, 5).is_err());
            assert_eq!(ParityLayout::from_name(Level::Raid6, name, 5).unwrap().encode(), of_six);
        }
    }

    #[test]
    fn every_layout_has_each_chunk_of_a_row_in_a_place_of_its_own() {
        for level in [Level::Raid4, Level::Raid5, Level::Raid6] {
            for number in 0..32 {
                for disks in 0..12 {
                    let Some(layout) = ParityLayout::new(level, number, disks) else { continue };
                    let parities = if level == Level::Raid6 { 2 } else { 1 };
                    assert_eq!(
                        (layout.data_disks() + parities, layout.parities()),
                        (layout.disks(), parities)
                    );
                    (0..40).for_each(|nth| _ = row(level, number, disks, nth));
                }
            }
        }
        assert_eq!(ParityLayout::new(Level::Raid5, 6, 4), None);
        assert_eq!(ParityLayout::new(Level::Raid6, 21, 5), None);
        assert_eq!(ParityLayout::new(Level::Raid6, 2, 2), None);
        assert_eq!(ParityLayout::new(Level::Raid10, 2, 4), None);
    }
}
