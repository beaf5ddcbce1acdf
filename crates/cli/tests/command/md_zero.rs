//! `blockwork md zero-superblock` beside mdadm's on the same disks: both leave the same bytes. And what is refused: disks that somebody has, or may
//! want back.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::md_examine::{SECTORS, members, old, put, theirs};
use crate::md_lab::{Lab, MIB};
use crate::support::lvm::Lab as Group;
use crate::support::{Scratch, Server, output, run, run_refused, tool};
use blockwork_format::md::create::Shape;
use blockwork_format::md::v0;
use blockwork_format::md::v1::Minor;

fn open(scratch: &Scratch, disk: &str) -> File {
    File::options().write(true).open(scratch.path(disk)).unwrap()
}

/// One of version 0.90, beside whatever there is. It is of an array that was created before those of `put`.
fn put_old(scratch: &Scratch, disk: &str) {
    open(scratch, disk).write_all_at(&old(1, 0, 0, 1), v0::sector(SECTORS).unwrap() * 512).unwrap();
}

fn examined(scratch: &Scratch, disk: &str) -> String {
    theirs(scratch, &["--examine"], disk)
}

#[test]
fn superblocks_of_all_versions_go_as_mdadm_has_them_go_and_nothing_else() {
    let all: [(&str, &[Minor], bool); 7] = [
        ("0.90", &[], true),
        ("1.0", &[Minor::V1_0], false),
        ("1.1", &[Minor::V1_1], false),
        ("1.2", &[Minor::V1_2], false),
        ("1.2 and 0.90", &[Minor::V1_2], true),
        ("1.0 and 1.1", &[Minor::V1_0, Minor::V1_1], false),
        ("1.0 and 0.90", &[Minor::V1_0], true),
    ];
    for (what, minors, has_old) in all {
        let scratch = Scratch::new();
        scratch.sparse("ours", SECTORS * 512);
        for minor in minors {
            let member = members(*minor, Shape::Raid1, 2).remove(0);
            let superblock = &member.superblock;
            let at = superblock.super_offset * 512;
            open(&scratch, "ours").write_all_at(&superblock.encode_blocks(512), at).unwrap();
        }
        if has_old {
            put_old(&scratch, "ours");
        }
        // Data, here and there.
        open(&scratch, "ours").write_all_at(&[7; 4096], 512 << 20).unwrap();
        open(&scratch, "ours").write_all_at(&[7; 512], 12 << 10).unwrap();
        run(tool("cp").args(["ours", "theirs"]).current_dir(scratch.path("")));
        assert!(examined(&scratch, "ours").contains("Magic : a92b4efc"), "{what}");
        let said = run(&mut scratch.blockwork(["md", "zero-superblock", "ours"]));
        assert_eq!(said.lines().count(), minors.len() + usize::from(has_old), "{what}: {said}");
        assert!(said.lines().all(|line| line.starts_with("ours: no superblock ")), "{said}");
        assert_eq!(said.contains("0.90 of the array raid1 (01234567:"), has_old, "{what}: {said}");
        assert_eq!(said.contains("of the array raid1 \"elsewhere:data\""), !minors.is_empty(), "{said}");
        assert_eq!(examined(&scratch, "ours"), "mdadm: No md superblock detected on ours.\n", "{what}");
        run(tool("mdadm").args(["--zero-superblock", "theirs"]).current_dir(scratch.path("")));
        let compare = ["compare", "-f", "raw", "-F", "raw", "ours", "theirs"];
        let cmp = output(tool("qemu-img").args(compare).current_dir(scratch.path("")));
        assert!(cmp.status.success(), "{what}: {}", String::from_utf8_lossy(&cmp.stdout));
        // Once more: it says so in mdadm's words, and that is no failure there, either.
        let [ours, theirs] = [
            output(&mut scratch.blockwork(["md", "zero-superblock", "ours"])),
            output(tool("mdadm").args(["--zero-superblock", "ours"]).current_dir(scratch.path(""))),
        ];
        let [us, them] = [&ours, &theirs].map(|done| String::from_utf8_lossy(&done.stderr).into_owned());
        assert_eq!((ours.status.code(), theirs.status.code()), (Some(0), Some(0)), "{us}{them}");
        assert_eq!(them, "mdadm: Unrecognised md component device - ours\n");
        assert!(us.contains("Unrecognised md component device - ours: it has no superblock"), "{us}");
    }
}

#[test]
fn what_is_in_use_or_may_be_wanted_back_keeps_its_superblock() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img", "c.img"], 16 * MIB, &["--assume-clean"]);
    let server = lab.serve(&["a.img", "b.img"]);
    lab.md(&["wait", "md/data"]);
    let said = lab.refused(&["zero-superblock", "b.img"]);
    assert!(said.contains("b.img: it is locked by process "), "{said}");
    lab.stop(server);
    // It lacks nothing of what the others have.
    let reads = ["serve", "--read-only", "md/data", "--disk", "a.img", "b.img", "--nbd", "unix:socket"];
    lab.scratch.sparse("d.img", 16 * MIB);
    run(tool("cp").args(["b.img", "d.img"]).current_dir(lab.scratch.path("")));
    let server = Server::start(&mut lab.scratch.blockwork(reads));
    let said = lab.refused(&["zero-superblock", "d.img"]);
    let expected =
        format!("d.img: it is an up-to-date member of md/data, which process {} serves", server.pid());
    assert!(said.contains(&expected) && said.contains("`blockwork md add`"), "{said}");
    lab.md(&["examine", "d.img"]);
    let said = lab.md(&["zero-superblock", "--force", "d.img"]);
    assert!(said.contains("d.img: no superblock 1.2 of the array raid1 \"data\""), "{said}");
    lab.stop(server);
    // A former member is the one that this is for, also while its array is served.
    let server = lab.serve(&["a.img", "b.img"]);
    lab.md(&["fail", "md/data", "b.img"]);
    lab.md(&["remove", "md/data", "b.img"]);
    lab.md(&["zero-superblock", "b.img"]);
    assert_eq!(examined(&lab.scratch, "b.img"), "mdadm: No md superblock detected on b.img.\n");
    // Nothing of it is left by which it would come back as what it was.
    let said = lab.md(&["add", "md/data", "b.img"]);
    assert!(said.contains("is being filled as member"), "{said}");
    lab.md(&["wait", "md/data"]);
    lab.stop(server);
}

#[test]
fn what_is_damaged_or_may_be_a_partitions_goes_by_force_alone() {
    let scratch = Scratch::new();
    let ends = || {
        let (disk, mut ends) =
            (File::open(scratch.path("disk")).unwrap(), [vec![0; 1 << 20], vec![0; 1 << 20]]);
        disk.read_exact_at(&mut ends[0], 0).unwrap();
        disk.read_exact_at(&mut ends[1], SECTORS * 512 - (1 << 20)).unwrap();
        ends
    };
    let refused = |disk: &str| {
        let before = ends();
        let said = run_refused(&mut scratch.blockwork(["md", "zero-superblock", disk]));
        assert!(ends() == before, "refused, and written to");
        said
    };
    put(&scratch, "disk", &members(Minor::V1_2, Shape::Raid1, 2).remove(0));
    open(&scratch, "disk").write_all_at(&[0xff], 4096 + 200).unwrap();
    let said = refused("disk");
    assert!(said.contains("disk: it has a damaged superblock; --force takes that away as well"), "{said}");
    let said = run(&mut scratch.blockwork(["md", "zero-superblock", "-f", "disk"]));
    assert_eq!(said, "disk: no damaged superblock any more\n");
    assert!(ends()[0][4096..8192].iter().all(|byte| *byte == 0));

    // What is at the end of the disk's last partition is where the disk's own would be.
    put_old(&scratch, "disk");
    let table = scratch.write("table", "label: dos\nstart=2048\n");
    run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{table}", scratch.at("disk"))]));
    let said = refused("disk");
    assert!(said.contains("it has partitions (1)") && said.contains("name that (disk/NUMBER)"), "{said}");
    let said = run(&mut scratch.blockwork(["md", "zero-superblock", "disk/1"]));
    assert!(said.starts_with("disk/1: no superblock 0.90 of the array raid1"), "{said}");
    run(&mut scratch.blockwork(["scan", "disk"]));
    let said = run_refused(&mut scratch.blockwork(["md", "zero-superblock", "disk/2"]));
    assert!(said.contains("the disk has no such partition"), "{said}");
}

#[test]
fn a_group_takes_a_former_member_by_force_and_leaves_nothing_of_its_superblock() {
    for metadata in ["1.0", "1.1", "1.2"] {
        let lab = Group::new(&[("a", 64), ("b", 64)]);
        let create =
            ["md", "create", "--level", "1", "--raid-devices", "2", "--metadata", metadata, "a", "b"];
        run(&mut lab.scratch.blockwork(create));
        let said = run_refused(&mut lab.scratch.blockwork(["vg", "create", "vg", "a"]));
        assert!(said.contains(" lies on it; if that may go, add --force, or take it away with"), "{said}");
        assert!(said.contains("`blockwork md zero-superblock`"), "{said}");
        run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "--force"]));
        run(&mut lab.scratch.blockwork(["md", "zero-superblock", "b"]));
        run(&mut lab.scratch.blockwork(["vg", "extend", "vg", "b", "--disk", "a"]));
        for disk in ["a", "b"] {
            let expected = format!("mdadm: No md superblock detected on {disk}.\n");
            assert_eq!(examined(&lab.scratch, disk), expected, "{metadata}");
        }
        lab.expect_sound();
    }
    // What the group itself lies on does not go, whoever says so.
    let lab = Group::new(&[("a", 64), ("b", 64)]);
    let create = ["md", "create", "--level", "1", "--raid-devices", "2", "--name", "data", "a", "b"];
    run(&mut lab.scratch.blockwork(create));
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "md/data", "--disk", "a", "b"]));
    let said =
        run_refused(&mut lab.scratch.blockwork(["vg", "extend", "vg", "a", "--force", "--disk", "a", "b"]));
    assert!(said.contains("it and another physical volume of vg are parts of each other"), "{said}");
}
