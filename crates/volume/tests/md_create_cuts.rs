//! A new array over an older one that mdadm left over a still older one: what `mdadm` and `blkid` see after each write. Alone in its file,
//! as programs that are started hold locks of disks that other tests have open.

mod cuts;
mod lab;

use std::process::Command;

use blockwork_format::lvm2::{self, Label, PvHeader};
use blockwork_format::md::create::{BitmapChoice, NewArray, NewDevice, Shape};
use blockwork_format::md::v1::Minor;
use blockwork_format::md::{SetName, Time, Uuid};
use blockwork_volume::md::{CreateRequest, Creation};
use cuts::{Event, begin_with_flushes, logged};
use lab::{Disk, Lab};

const SECTORS: u64 = 8 << 11;
const OLDER: Uuid = Uuid([0x33; 16]);
const OLD: Uuid = Uuid([0x11; 16]);
const NEW: Uuid = Uuid([0x5a; 16]);

fn array(minor: Minor, uuid: Uuid, ctime: u64) -> NewArray {
    NewArray {
        minor,
        shape: Shape::Raid1,
        raid_disks: 1,
        bitmap: BitmapChoice::Internal,
        assume_clean: true,
        size: None,
        data_offset: None,
        uuid,
        name: SetName::new("data").unwrap(),
        ctime: Time::new(ctime, 0),
    }
}

/// A member as mdadm leaves it: what lies elsewhere stays.
fn leave(disk: &Disk, array: &NewArray) {
    let member = array.lay_out(&[Some(NewDevice { sectors: SECTORS, uuid: array.uuid })]).unwrap().remove(0);
    for (sector, bytes) in member.before_superblock() {
        disk.write(sector * 512, &bytes);
    }
    disk.write(member.superblock.super_offset * 512, &member.superblock.encode());
}

fn ask(tool: &str, args: &[&str], disk: &Disk) -> String {
    let output = Command::new(tool).args(args).arg(&disk.path).output();
    let output =
        output.unwrap_or_else(|error| panic!("{tool}: {error}; scripts/install-test-tools installs it"));
    String::from_utf8(output.stdout).unwrap()
}

/// The array that blkid takes a disk for a member of, which it must not take for anything else.
fn blkid(disk: &Disk) -> Option<Uuid> {
    let text = ask("blkid", &["-p", "-o", "export"], disk);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let kind = value("TYPE=").or(value("PTTYPE="))?;
    assert_eq!(kind, "linux_raid_member", "{text}");
    value("UUID=").map(uuid)
}

fn mdadm(disk: &Disk) -> Option<Uuid> {
    let text = ask("mdadm", &["--examine", "--export"], disk);
    text.lines().find_map(|line| line.strip_prefix("MD_UUID=")).map(uuid)
}

fn uuid(text: &str) -> Uuid {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    Uuid(u128::from_str_radix(&digits, 16).unwrap().to_be_bytes())
}

#[test]
fn neither_mdadm_nor_blkid_ever_sees_what_is_older_than_what_they_saw() {
    for (older, old, new) in
        [(Minor::V1_0, Minor::V1_2, Minor::V1_1), (Minor::V1_0, Minor::V1_1, Minor::V1_2)]
    {
        let lab = Lab::new();
        let disk = lab.disk("a", SECTORS);
        leave(&disk, &array(older, OLDER, 1_500_000_000));
        leave(&disk, &array(old, OLD, 1_600_000_000));
        let pv = PvHeader::new(lvm2::Uuid::from_random([7; 32]), SECTORS * 512, PvHeader::DATA_OFFSET);
        disk.write(1024, &Label { sector: 2, pv }.encode().unwrap());
        let before = disk.bytes();
        let disks = vec![disk.path.to_str().unwrap().to_owned()];
        let array = array(new, NEW, 1_800_000_000);
        let request = CreateRequest { array, disks, uuids: vec![Uuid([1; 16])], force: true };
        let creation = Creation::prepare(&request).unwrap();
        let writing = creation.writing();
        let events = logged(creation.assembly(), |cx| async move { writing.carry_out(&cx).await.unwrap() });
        assert!(begin_with_flushes(&events), "what was found may not be durable");
        drop(creation);
        disk.write(0, &before);
        // blkid takes the first that it finds, mdadm the newest.
        let ages = [Some(OLDER), Some(OLD), None, Some(NEW)];
        let age = |seen| ages.iter().position(|it| *it == seen).expect("none but these is seen");
        let mut last = [age(blkid(&disk)), age(mdadm(&disk))];
        assert_eq!(last[1], 1, "to mdadm, the old one counts");
        // A long write is cut by the disk's queue.
        let (mut is_safe, mut end) = (true, 0);
        for event in events {
            let Event::Write { offset, bytes, is_durable, .. } = event else {
                is_safe = true;
                continue;
            };
            let is_wiped = bytes.iter().all(|byte| *byte == 0);
            assert!(
                is_safe || !is_wiped || offset == end,
                "what was wiped before byte {offset} may be there still"
            );
            (is_safe, end) = (is_durable, offset + bytes.len() as u64);
            disk.write(offset, &bytes);
            let now = [age(blkid(&disk)), age(mdadm(&disk))];
            assert!(last.iter().zip(now).all(|(last, now)| *last <= now), "byte {offset}: {last:?}, {now:?}");
            last = now;
        }
        assert_eq!(last, [3; 2]);
    }
}
