//! What is written to make an array, write by write: wherever it ends, no disk tells of what it does not hold.

use std::fs::File;
use std::os::unix::fs::FileExt;

use blockwork_format::lvm2;
use blockwork_format::md::create::{BitmapChoice, Shape};
use blockwork_format::md::v1::Minor;
use blockwork_format::md::{MAGIC, Raid10Layout, SetName, Superblock, Time, v0};

use super::*;
use crate::graph::Content;

const NEW: Uuid = Uuid([0x5a; 16]);
const OLD: Uuid = Uuid([0x11; 16]);

struct Lab(tempfile::TempDir);

impl Lab {
    fn new(disks: &[&str]) -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        for name in disks {
            File::create_new(lab.path(name)).unwrap().set_len(16 << 20).unwrap();
        }
        lab
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A new array of that time is written: not wiped first, as mdadm leaves what lies at another place.
    fn leave(&self, minor: Minor, uuid: Uuid, ctime: u64, disks: &[&str]) {
        let mut request = self.request(minor, uuid, disks);
        request.array.ctime = Time::new(ctime, 0);
        for (_, path, piece) in
            self.writes(&request).into_iter().filter(|(_, _, it)| it.bytes.iter().any(|it| *it != 0))
        {
            Lab::apply(&path, &piece);
        }
    }

    fn request(&self, minor: Minor, uuid: Uuid, disks: &[&str]) -> CreateRequest {
        let layout = Raid10Layout::from_short_name("n2", 4).unwrap();
        let array = NewArray {
            minor,
            shape: Shape::Raid10 { layout, chunk_sectors: 64 },
            raid_disks: 4,
            bitmap: BitmapChoice::Internal,
            assume_clean: false,
            size: None,
            data_offset: None,
            uuid,
            name: SetName::new("data").unwrap(),
            ctime: Time::new(1_800_000_000, 0),
        };
        let uuids = (1..).take(disks.len()).map(|nth| Uuid([nth; 16])).collect();
        let disks = disks.iter().map(|name| self.path(name)).collect();
        CreateRequest { array, disks, uuids, force: true }
    }

    /// All writes in order: the step, the disk's path, what.
    fn writes(&self, request: &CreateRequest) -> Vec<(usize, String, Piece)> {
        let Writing { steps, targets } = Creation::prepare(request).unwrap().writing();
        let with_step = |(nth, step): (usize, Step)| step.writes.into_iter().map(move |write| (nth, write));
        let writes = steps.into_iter().enumerate().flat_map(with_step);
        writes.map(|(step, write)| (step, targets[write.device].name.clone(), write.piece)).collect()
    }

    fn apply(path: &str, piece: &Piece) {
        File::options().write(true).open(path).unwrap().write_all_at(&piece.bytes, piece.offset).unwrap();
    }

    /// Writes a piece; what was there before.
    fn exchange(&self, disk: &str, piece: &Piece) -> Piece {
        let path = self.path(disk);
        let mut bytes = vec![0; piece.bytes.len()];
        File::open(&path).unwrap().read_exact_at(&mut bytes, piece.offset).unwrap();
        Lab::apply(&path, piece);
        Piece { offset: piece.offset, bytes }
    }

    /// A disk holds the old array's superblock with its bitmap, nothing, or the new one's.
    #[track_caller]
    fn assert_not_older(&self, disk: &str, step: usize) {
        let found = self.found(&[disk]);
        let is_allowed =
            |it: &Option<(Uuid, bool)>| it.is_none_or(|it| it == (OLD, true) || it == (NEW, true));
        assert!(found.iter().all(is_allowed), "step {step}: {found:?}");
    }

    /// The superblocks that count, by disk, with what the disks say of their bitmaps.
    fn found(&self, disks: &[&str]) -> Vec<Option<(Uuid, bool)>> {
        let plan = Plan {
            disks: disks.iter().map(|name| self.path(name)).collect(),
            read_only: true,
            ..Plan::default()
        };
        let mut assembly = Assembly::open(plan).unwrap();
        let ids: Vec<_> = assembly.graph.iter().map(|(id, _)| id).take(disks.len()).collect();
        ids.into_iter()
            .map(|id| {
                let content = &assembly.graph.device(id).content;
                assert!(!matches!(content, Content::Partitions(_)), "the old partitions are back");
                assert!(!matches!(content, Content::Pv(_)), "the old physical volume is back");
                let examined = assembly.examine(id)?;
                let has_bitmap = matches!(examined.bitmap, Some(Ok((bitmap, _))) if bitmap.uuid == examined.superblock.uuid());
                Some((examined.superblock.uuid(), has_bitmap))
            })
            .collect()
    }
}

#[test]
fn wherever_a_power_cut_comes_a_disk_holds_the_old_or_nothing_or_all_that_its_superblock_tells_of() {
    const DISKS: [&str; 4] = ["a", "b", "c", "d"];
    for (old, new) in [(Minor::V1_0, Minor::V1_2), (Minor::V1_2, Minor::V1_0), (Minor::V1_2, Minor::V1_1)] {
        let lab = Lab::new(&DISKS);
        for (_, path, piece) in lab.writes(&lab.request(old, OLD, &DISKS)) {
            Lab::apply(&path, &piece);
        }
        assert_eq!(lab.found(&DISKS), [Some((OLD, true)); 4]);
        let writes = lab.writes(&lab.request(new, NEW, &DISKS));
        assert!(writes.is_sorted_by_key(|(step, ..)| *step));
        let bitmaps = writes.last().unwrap().0 - 1;
        for (step, path, piece) in writes {
            Lab::apply(&path, &piece);
            let found = lab.found(&DISKS);
            match step {
                _ if step < bitmaps => {
                    assert!(found.iter().all(|it| it.is_none_or(|(uuid, _)| uuid == OLD)), "{found:?}");
                }
                _ if step == bitmaps => {
                    assert_eq!(found, [None; 4], "bitmaps are there, superblocks not yet")
                }
                _ => assert!(found.iter().all(|it| it.is_none_or(|it| it == (NEW, true))), "{found:?}"),
            }
        }
        assert_eq!(lab.found(&DISKS), [Some((NEW, true)); 4]);
    }
}

/// The label of a physical volume, as `pvcreate` writes it.
fn label() -> Piece {
    let id = lvm2::Uuid::from_random([7; 32]);
    let pv = lvm2::PvHeader::new(id, 16 << 20, lvm2::PvHeader::DATA_OFFSET);
    Piece { offset: 512, bytes: lvm2::Label { sector: 1, pv }.encode().unwrap().to_vec() }
}

/// A write of which only every other sector is there.
fn torn(piece: &Piece, odd: usize) -> Vec<Piece> {
    let sectors = piece.bytes.chunks(512).zip((piece.offset..).step_by(512)).skip(odd).step_by(2);
    sectors.map(|(bytes, offset)| Piece { offset, bytes: bytes.to_vec() }).collect()
}

#[test]
fn wherever_a_power_cut_comes_nothing_older_than_the_old_is_seen() {
    const DISKS: [&str; 4] = ["a", "b", "c", "d"];
    const OLDER: Uuid = Uuid([0x33; 16]);
    for (older, old, new) in [
        (Minor::V1_0, Minor::V1_2, Minor::V1_1),
        (Minor::V1_0, Minor::V1_2, Minor::V1_2),
        (Minor::V1_0, Minor::V1_1, Minor::V1_2),
    ] {
        let lab = Lab::new(&DISKS);
        lab.leave(older, OLDER, 1_500_000_000, &DISKS);
        lab.leave(old, OLD, 1_600_000_000, &DISKS);
        DISKS.iter().for_each(|disk| Lab::apply(&lab.path(disk), &label()));
        assert_eq!(lab.found(&DISKS), [Some((OLD, true)); 4]);
        let writes = lab.writes(&lab.request(new, NEW, &DISKS));
        let mut zeros: Vec<_> = writes.iter().filter(|(.., it)| it.bytes.iter().all(|it| *it == 0)).collect();
        zeros.sort_by_key(|(step, path, _)| (*step, path));
        let is_ordered = zeros.windows(2).all(|pair| (pair[0].0, &pair[0].1) != (pair[1].0, &pair[1].1));
        assert!(is_ordered, "within a step, a disk's writes may be done in any order");
        for (step, path, piece) in writes {
            let disk = DISKS.into_iter().find(|disk| lab.path(disk) == path).unwrap();
            for odd in [0, 1] {
                let kept = torn(&piece, odd).iter().map(|part| lab.exchange(disk, part)).collect::<Vec<_>>();
                lab.assert_not_older(disk, step);
                kept.iter().for_each(|part| Lab::apply(&path, part));
            }
            Lab::apply(&path, &piece);
            lab.assert_not_older(disk, step);
        }
        assert_eq!(lab.found(&DISKS), [Some((NEW, true)); 4]);
    }
}

#[test]
fn what_lies_in_the_data_stays() {
    const DISKS: [&str; 4] = ["a", "b", "c", "d"];
    let lab = Lab::new(&DISKS);
    for name in DISKS {
        let bytes: Vec<u8> = (0..16u32 << 20).map(|at| (at / 512 % 251) as u8 + 1).collect();
        std::fs::write(lab.path(name), bytes).unwrap();
    }
    let writes = lab.writes(&lab.request(Minor::V1_2, NEW, &DISKS));
    let creation = Creation::prepare(&lab.request(Minor::V1_2, NEW, &DISKS)).unwrap();
    let data = creation.members()[0].member.superblock.data().start * 512;
    assert!(writes.iter().all(|(_, _, piece)| piece.offset + piece.bytes.len() as u64 <= data));
}

#[test]
fn headers_that_point_at_nothing_any_more_are_wiped_wherever_they_lie() {
    let lab = Lab::new(&["a", "b", "c", "d"]);
    let path = lab.path("a");
    let end = 16 << 20;
    for (offset, bytes) in [(end - 512, &b"EFI PART"[..]), (end - 4096, b"EFI PART")] {
        Lab::apply(&path, &Piece { offset, bytes: bytes.to_vec() });
    }
    let old = v0::sector(end / 512).unwrap() * 512;
    Lab::apply(&path, &Piece { offset: old, bytes: MAGIC.to_be_bytes().to_vec() });
    let writes = lab.writes(&lab.request(Minor::V1_2, NEW, &["a", "b", "c", "d"]));
    let wiped = |offset: u64| {
        let covers =
            |piece: &Piece| (piece.offset..piece.offset + piece.bytes.len() as u64).contains(&offset);
        let is_zeros = |piece: &Piece| piece.bytes.iter().all(|byte| *byte == 0);
        writes.iter().any(|(_, disk, piece)| *disk == path && covers(piece) && is_zeros(piece))
    };
    assert_eq!([end - 512, end - 4096, old, 0, 512].map(wiped), [true; 5]);
    assert!(!wiped(end - 64 * 1024 - 65_536 - 512), "what nobody knows is left alone");
}

#[test]
fn what_a_disk_holds_is_named() {
    let lab = Lab::new(&["a", "b", "c", "d"]);
    for (_, path, piece) in lab.writes(&lab.request(Minor::V1_0, OLD, &["a", "b", "c", "d"])) {
        Lab::apply(&path, &piece);
    }
    let damaged = Minor::V1_0.sector((16 << 20) / 512).unwrap() * 512;
    Lab::apply(&lab.path("b"), &Piece { offset: damaged + 200, bytes: vec![1] });
    let request = |disks: &[&str]| CreateRequest { force: false, ..lab.request(Minor::V1_2, NEW, disks) };
    for (disks, held) in [
        (["a", "b", "c", "d"], "a member of the raid10 array \"data\" (11111111:11111111:11111111:11111111)"),
        (["b", "a", "c", "d"], "a damaged md superblock"),
    ] {
        let Err(error) = Creation::prepare(&request(&disks)) else { panic!("{disks:?} are in use") };
        assert!(error.to_string().contains(held), "{error}");
    }
    let Superblock::V1(old) = Assembly::open(Plan { disks: vec![lab.path("c")], ..Plan::default() })
        .map(|mut assembly| assembly.examine(DeviceId(0)).unwrap().superblock)
        .unwrap()
    else {
        panic!("it is 1.0")
    };
    assert_eq!(old.set_uuid, OLD);
}
