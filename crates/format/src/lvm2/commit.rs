//! A change of a VG's metadata as writes: which, where, and in which order, so that a power cut leaves the old text or the new
//! one, and never neither.
//!
//! ```text
//!   texts ─▶ slot 1 of every header (precommitted) ─▶ slot 0 of one header ─▶ slot 0 of the next one ─▶ …
//! ```
//!
//! Invariants:
//!
//! 1. Each [`Step`] is durable before the next one begins; within a step writes may be lost, torn or reordered.
//! 2. Until the first header has the text in slot 0, every area has the old one, whole: a text never touches the one that is
//!    committed ([`AreaHeader::place`]), and a header is one sector, which a disk writes as a whole or not at all.
//! 3. From then on the change is made: of several areas the one with the highest seqno counts. Areas that a cut kept from it
//!    are outdated, and get the next text as any other: there is no other repair.
//!
//! An area whose header is damaged takes part with a new one ([`AreaHeader::new`]): it holds nothing that could be lost.

use super::area::{AreaHeader, RawLocation};
use crate::{FormatError, Piece};

/// A metadata area that is to get the new text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Which device, by the caller's count.
    pub device: usize,
    /// Its header as it is now, or a new one.
    pub header: AreaHeader,
}

/// Bytes for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Which device, by the caller's count.
    pub device: usize,
    /// What, and where.
    pub piece: Piece,
}

/// What a step does to the group as it will be found after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it is as before.
    None,
    /// With the first write of the step the change is made.
    Change,
    /// The change is made already: more copies of it.
    Copy,
}

/// Writes that are durable before those of the next step begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is written, for errors: `the new metadata`.
    pub what: &'static str,
    /// What it means for the group.
    pub effect: Effect,
    /// The writes.
    pub writes: Vec<Write>,
}

/// The steps that give all areas a new text, which is without its NUL.
///
/// # Errors
///
/// Where an area has no room for the text. Nothing has to be written to find that out.
pub fn steps(targets: &[Target], text: &[u8]) -> Result<Vec<Step>, FormatError> {
    let mut texts = Vec::new();
    let mut precommits = Vec::with_capacity(targets.len());
    let mut commits = Vec::with_capacity(targets.len());
    for Target { device, header } in targets {
        let at = header.area.offset;
        let write = |offset, bytes: Vec<u8>| Write { device: *device, piece: Piece { offset, bytes } };
        let place = header.place(text)?;
        texts.extend(header.pieces(&place, text)?.into_iter().map(|piece| write(piece.offset, piece.bytes)));
        let [old, _] = header.slots;
        let precommitted = AreaHeader { slots: [old, place], ..header.clone() };
        let committed = AreaHeader { slots: [place, RawLocation::default()], ..header.clone() };
        precommits.push(write(at, precommitted.encode().to_vec()));
        commits.push(write(at, committed.encode().to_vec()));
    }
    let mut steps = vec![
        Step { what: "the new metadata", effect: Effect::None, writes: texts },
        Step { what: "that new metadata is about to come", effect: Effect::None, writes: precommits },
    ];
    for (nth, write) in commits.into_iter().enumerate() {
        let effect = if nth == 0 { Effect::Change } else { Effect::Copy };
        steps.push(Step { what: "that the new metadata counts", effect, writes: vec![write] });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lvm2::DiskArea;

    /// Disks as flat bytes, each with areas, and the number of the text that each area holds.
    struct Lab {
        disks: Vec<Vec<u8>>,
        areas: Vec<(usize, DiskArea)>,
    }

    impl Lab {
        fn new(sizes: &[u64]) -> Lab {
            let mut lab = Lab { disks: Vec::new(), areas: Vec::new() };
            for (disk, size) in sizes.iter().enumerate() {
                let area = DiskArea { offset: 4096, size: *size };
                lab.disks.push(vec![0; 4096 + usize::try_from(*size).unwrap()]);
                lab.areas.push((disk, area));
                let header = AreaHeader::new(area).unwrap().encode();
                lab.apply(&Write { device: disk, piece: Piece { offset: 4096, bytes: header.to_vec() } });
            }
            lab
        }

        fn apply(&mut self, write: &Write) {
            let at = usize::try_from(write.piece.offset).unwrap();
            self.disks[write.device][at..][..write.piece.bytes.len()].copy_from_slice(&write.piece.bytes);
        }

        fn targets(&self) -> Vec<Target> {
            let read = |(device, area): &(usize, DiskArea)| {
                AreaHeader::read(&self.disks[*device], *area).map(|header| Target { device: *device, header })
            };
            self.areas.iter().map(|area| read(area).unwrap()).collect()
        }

        /// The text with the highest number that any area has, as a reader finds it.
        fn newest(&self) -> Option<(u64, Vec<u8>)> {
            let text = |target: Target| {
                let found = target.header.committed()?;
                let text = target.header.read_text(&self.disks[target.device], &found).unwrap();
                let number = u64::from_le_bytes(text[..8].try_into().unwrap()) & 0x0f0f_0f0f;
                Some((number, text))
            };
            self.targets().into_iter().filter_map(text).max()
        }
    }

    /// A text with a number in front, and no NUL.
    fn text(number: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xf0; 8];
        bytes[0] = 0x10 | number;
        bytes.extend((0..length).map(|n| b'a' + u8::try_from((n + usize::from(number)) % 26).unwrap()));
        bytes
    }

    /// What a cut in the middle of a step leaves of it: of each sector of each write, the old bytes or the new ones.
    fn torn(lab: &mut Lab, step: &Step, mut kept: impl FnMut() -> bool) {
        for write in &step.writes {
            for (n, sector) in write.piece.bytes.chunks(512).enumerate() {
                if kept() {
                    let offset = write.piece.offset + 512 * n as u64;
                    lab.apply(&Write {
                        device: write.device,
                        piece: Piece { offset, bytes: sector.to_vec() },
                    });
                }
            }
        }
    }

    proptest! {
        #[test]
        fn after_a_cut_in_any_step_the_old_text_or_the_new_one_is_found_and_the_next_change_mends_all(
            sizes in proptest::collection::vec((5u64..18).prop_map(|sectors| 512 * sectors), 1..4), lengths in proptest::collection::vec(0usize..900, 2..12),
            tears in proptest::collection::vec(any::<bool>(), 4096),
        ) {
            let mut lab = Lab::new(&sizes);
            let (mut tear, mut before) = (tears.iter().cycle(), None);
            for (number, length) in (1u8..).zip(lengths) {
                let text = text(number, length.min(500));
                let new = Some((u64::from(number), [&text[..], &[0]].concat()));
                let steps = steps(&lab.targets(), &text).unwrap();
                for (nth, step) in steps.iter().enumerate() {
                    let mut cut = Lab { disks: lab.disks.clone(), areas: lab.areas.clone() };
                    torn(&mut cut, step, || *tear.next().unwrap());
                    let found = cut.newest();
                    match step.effect {
                        Effect::None => prop_assert_eq!(&found, &before, "step {}", nth),
                        Effect::Change => prop_assert!(found == before || found == new, "step {nth}"),
                        Effect::Copy => prop_assert_eq!(&found, &new, "step {}", nth),
                    }
                    step.writes.iter().for_each(|write| lab.apply(write));
                    // Now and then the change is left as it was cut, and the next one comes on top.
                    if *tear.next().unwrap() && *tear.next().unwrap() && found.is_some() {
                        lab = cut;
                        break;
                    }
                }
                before = lab.newest();
            }
            let last = text(15, 10);
            for step in steps(&lab.targets(), &last).unwrap() {
                step.writes.iter().for_each(|write| lab.apply(write));
            }
            for target in lab.targets() {
                let found = target.header.committed().unwrap();
                prop_assert_eq!(target.header.precommitted(), None);
                let read = target.header.read_text(&lab.disks[target.device], &found).unwrap();
                prop_assert_eq!(&read[..read.len() - 1], &last[..], "no area is outdated");
            }
        }
    }

    #[test]
    fn a_text_that_has_no_room_in_one_of_the_areas_is_refused_as_a_whole() {
        let lab = Lab::new(&[65536, 2560]);
        let error = steps(&lab.targets(), &vec![b' '; 4000]).unwrap_err().to_string();
        assert!(
            error.contains("new text is 4001 bytes, expected at most 512; the area is full: remove"),
            "{error}"
        );
    }

    #[test]
    fn headers_are_committed_one_by_one() {
        let lab = Lab::new(&[65536, 65536, 65536]);
        let steps = steps(&lab.targets(), b"text").unwrap();
        let shape: Vec<_> = steps.iter().map(|step| (step.effect, step.writes.len())).collect();
        let expected =
            [(Effect::None, 3), (Effect::None, 3), (Effect::Change, 1), (Effect::Copy, 1), (Effect::Copy, 1)];
        assert_eq!(shape, expected);
    }
}
