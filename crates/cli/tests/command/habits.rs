//! What those type who know Linux's tools: it is done where it is the same thing, and otherwise refused with the command that does it.

use crate::support::{Scratch, both, output, run, run_refused};

/// The refusal of a command line by its words: exit code 2, and nothing that clap guesses.
fn refusal(scratch: &Scratch, line: &str) -> String {
    let done = output(&mut scratch.blockwork(line.split(' ')));
    assert_eq!(done.status.code(), Some(2), "{line}: {}", both(&done));
    let said = both(&done);
    assert!(!said.contains("similar") && !said.contains("as a value"), "{line}: {said}");
    said
}

#[test]
fn the_name_of_a_tool_is_answered_with_the_command_that_does_it() {
    const LINES: &[(&str, &[&str])] = &[
        ("lvs", &["blockwork lv show --disk DISK..."]),
        ("pvs -o +pv_used", &["blockwork scan DISK..."]),
        ("lvextend -L +1G vg0/root", &["blockwork lv resize VG/LV --size"]),
        ("lvcreate -s -n before vg0/root", &["blockwork lv create VG/LV", "blockwork lv snapshot VG/LV"]),
        ("pvmove /dev/sda", &["LVM does it"]),
        (
            "mdadm -C /dev/md0 -l 1 -n 2 a b",
            &["blockwork md create", "blockwork serve --disk DISK... md/NAME"],
        ),
        ("dmsetup table", &["blockwork serve --table FILE"]),
        ("qemu-nbd -r disk.img", &["blockwork serve --disk DISK --nbd unix:PATH"]),
        ("btrace /dev/sda", &["blockwork trace VOLUME"]),
        ("kpartx -a disk.img", &["--fuse FILE"]),
        ("lv extend -r vg0/root", &["blockwork lv resize VG/LV"]),
        ("vg ls", &["blockwork vg show"]),
        ("md --assemble --scan", &["blockwork serve --disk DISK... md/NAME"]),
        ("md stop md/data", &["SIGTERM ends a server"]),
    ];
    let scratch = Scratch::new();
    for (line, tips) in LINES {
        let said = refusal(&scratch, line);
        tips.iter().for_each(|tip| assert!(said.contains(tip), "{line}: {said}"));
    }
}

#[test]
fn an_option_that_is_another_one_here_is_answered_with_that() {
    const LINES: &[(&str, &str)] = &[
        ("lv create -s vg0/root", "blockwork lv snapshot VG/LV"),
        ("lv create vg0/pool -L 1G --type thin-pool", "--thin-pool makes a thin pool"),
        ("lv resize -r -L +1G vg0/root", "resize2fs or xfs_growfs"),
        ("lv show -o lv_name,lv_size", "--json prints all"),
        ("vg create -y vg0 a", "--force, written out"),
        ("md examine --scan a", "--json prints all"),
        ("scan --disk a", "disks stand by themselves"),
        ("serve -f qcow2 --disk a", "qemu-img convert"),
        ("serve --daemonize --disk a", "--fork returns when the server is ready"),
        ("serve --cache=none --disk a", "--disk DISK,cache=none"),
    ];
    let scratch = Scratch::new();
    for (line, tip) in LINES {
        let said = refusal(&scratch, line);
        assert!(said.contains(tip), "{line}: {said}");
    }
}

/// As it is typed for mdadm: what it asks is not asked here, and an array has no device.
#[test]
fn md_create_takes_what_mdadm_takes_and_says_where_the_device_belongs() {
    let scratch = Scratch::new();
    for disk in ["a", "b"] {
        scratch.sparse(disk, 64 << 20);
    }
    let args = ["md", "create", "--run", "-l1", "-n2", "-N", "data"];
    let said = run_refused(scratch.blockwork(args).args(["/dev/md0", "a", "b"]));
    assert!(said.contains("leave /dev/md0 out, and name the array by --name"), "{said}");
    run(scratch.blockwork(args).args(["a", "b"]));
}
