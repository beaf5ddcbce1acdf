//! Our `vg` and `lv` verbs on real disks, judged by LVM's own tools after every step: what they find, that they have nothing to
//! complain of, that they would have put volumes in the same places, and that they go on where we stop.
//!
//! LVM runs on loop devices, without the kernel's device mapper (`--driverloaded n`): it reads and writes metadata, and
//! activates nothing. The kernel itself judges in `kernel_lvm_verbs`.

mod support;

use std::fs;

use serde_json::Value;
use support::fs::Loop;
use support::{Scratch, both, output, run, run_refused, tool};

const MIB: u64 = 1 << 20;

/// Disks, ours by their names, and LVM's as loop devices while it runs.
struct Lab {
    scratch: Scratch,
    disks: Vec<String>,
}

impl Lab {
    fn new(disks: &[(&str, u64)]) -> Lab {
        let scratch = Scratch::new();
        disks.iter().for_each(|(name, mib)| drop(scratch.sparse(name, mib * MIB)));
        Lab { scratch, disks: disks.iter().map(|(name, _)| (*name).to_owned()).collect() }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = args.to_vec();
        all.push("--disk");
        all.extend(self.disks.iter().map(String::as_str));
        all
    }

    /// A verb of ours, on all disks; then LVM looks at them.
    fn verb(&self, args: &[&str]) -> String {
        let said = run(&mut self.scratch.blockwork(self.args(args)));
        self.expect_sound();
        said
    }

    /// A verb of ours that must be refused, with one line, and not a byte changed.
    fn refused(&self, args: &[&str]) -> String {
        let before = self.bytes();
        let said = run_refused(&mut self.scratch.blockwork(self.args(args)));
        assert!(self.bytes() == before, "{args:?}: refused, and written to");
        assert!(said.starts_with("blockwork: error: ") && said.lines().count() == 1, "{said}");
        said
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.disks.iter().map(|disk| self.scratch.read(disk)).collect()
    }

    fn restore(&self, images: &[Vec<u8>]) {
        for (disk, image) in self.disks.iter().zip(images) {
            self.scratch.write(disk, image);
        }
    }

    /// LVM's commands, one after the other, each with the devices in place of `DISKS` and of `DISK0`, ...; what they printed.
    fn lvm(&self, commands: &[&str]) -> Vec<String> {
        let loops: Vec<Loop> =
            self.disks.iter().map(|disk| Loop::with(&[], &self.scratch.at(disk))).collect();
        let ours: String = loops.iter().map(|it| format!("\"a|^{}$|\",", it.device)).collect();
        let configuration = format!(
            "devices {{ obtain_device_list_from_udev = 0 use_devicesfile = 0 external_device_info_source = \"none\"\n\
             global_filter = [{ours} \"r|.*|\"] }}\n\
             global {{ use_lvmpolld = 0 use_lvmlockd = 0 event_activation = 0 locking_dir = \"{}\" }}\n\
             activation {{ udev_sync = 0 udev_rules = 0 monitoring = 0 }}\n\
             backup {{ backup = 0 archive = 0 }}\n",
            self.scratch.at("locks")
        );
        fs::create_dir_all(self.scratch.path("lvm")).expect("a folder");
        fs::write(self.scratch.path("lvm").join("lvm.conf"), configuration).expect("a file");
        let one = |command: &&str| {
            let words = command.split_whitespace().flat_map(|word| match word {
                "DISKS" => loops.iter().map(|it| it.device.clone()).collect(),
                _ => match word.strip_prefix("DISK").and_then(|number| number.parse::<usize>().ok()) {
                    Some(number) => vec![loops[number].device.clone()],
                    None => vec![word.to_owned()],
                },
            });
            let mut lvm = tool("lvm");
            lvm.args(words).args(["--driverloaded", "n"]);
            lvm.env("LVM_SYSTEM_DIR", self.scratch.path("lvm")).env("LVM_SUPPRESS_FD_WARNINGS", "1");
            let done = output(&mut lvm);
            assert!(done.status.success(), "lvm {command}: {}", both(&done));
            let said = both(&done);
            let lines = said.lines().filter(|line| !line.contains("Activation disabled"));
            lines.map(|line| format!("{line}\n")).collect()
        };
        commands.iter().map(one).collect()
    }

    /// LVM finds nothing to complain of.
    fn expect_sound(&self) {
        let said = self.lvm(&["vgck vg", "pvck DISKS", "pvs --noheadings -o pv_in_use,pv_ext_vsn,vg_name"]);
        assert_eq!(said[0], "", "vgck");
        let complaints: Vec<&str> = said[1].lines().filter(|line| !line.contains("Found")).collect();
        assert_eq!(complaints, [] as [&str; 0], "pvck");
        for line in said[2].lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(words == ["used", "2", "vg"] || words == ["2"], "pvs: {line}");
        }
    }

    /// Where all volumes lie, as LVM tells: by name, each segment with its extents and its places.
    fn layout(&self, group: &str) -> Vec<String> {
        let command = format!(
            "lvs -a --noheadings -O lv_name,seg_start_pe --separator ; --units s --nosuffix \
             -o lv_name,segtype,seg_start_pe,seg_size_pe,stripes,stripe_size,region_size,seg_le_ranges,lv_tags {group}"
        );
        let said = self.lvm(&[&command]).remove(0);
        // Devices differ from run to run.
        let plain = |line: &str| {
            let mut words = line.trim().to_owned();
            for (number, device) in devices_in(&said).iter().enumerate() {
                words = words.replace(&format!("{device}:"), &format!("DISK{number}:"));
            }
            words
        };
        said.lines().map(plain).collect()
    }
}

/// The loop devices that are named in a text, in order of their numbers: that is the order of the disks only where they are
/// attached in that order, which is what the kernel does with the lowest free ones.
fn devices_in(said: &str) -> Vec<String> {
    let mut found: Vec<u32> = said
        .split("/dev/loop")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|number| format!("/dev/loop{number}")).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn lvm_has_nothing_to_complain_of_after_any_step() {
    let lab = Lab::new(&[("a", 64), ("b", 64), ("c", 64), ("d", 64)]);
    let three = ["vg", "create", "vg", "a", "b", "c", "--physical-extent-size", "1M", "--addtag", "new"];
    let said = run(&mut lab.scratch.blockwork(three));
    assert_eq!(said, "vg: 3 disks, 189M, 189M free\n");
    run(&mut lab.scratch.blockwork(["vg", "extend", "vg", "d", "--disk", "a", "b", "c"]));
    lab.expect_sound();
    lab.verb(&["lv", "create", "vg/lin", "--size", "5M"]);
    lab.verb(&["lv", "create", "vg/str", "--type", "striped", "--stripes", "3", "--extents", "9"]);
    lab.verb(&["lv", "create", "vg/r1", "-m", "1", "--size", "7M", "--addtag", "x", "--addtag", "y"]);
    lab.verb(&["lv", "create", "vg/r10", "--type", "raid10", "--size", "8M", "--nosync"]);
    let made = json(&lab.verb(&["lv", "create", "vg/half", "--extents", "50%FREE", "--json"]));
    assert_eq!((&made["volume"]["name"], &made["volume"]["type"]), (&"half".into(), &"linear".into()));
    lab.verb(&["lv", "resize", "vg/lin", "--size", "+3M"]);
    lab.verb(&["lv", "resize", "vg/str", "--extents", "3", "--force"]);
    lab.verb(&["lv", "rename", "vg/r1", "vg/mirror"]);
    lab.verb(&["lv", "tag", "vg/mirror", "--deltag", "x"]);
    lab.verb(&["vg", "tag", "vg", "--addtag", "t", "--deltag", "new"]);
    lab.verb(&["lv", "remove", "vg/half", "vg/str"]);
    let said = lab.lvm(&[
        "lvs --noheadings -o lv_name,lv_size,lv_tags --units m vg",
        "vgs --noheadings -o vg_name,vg_tags,pv_count,lv_count,vg_seqno vg",
    ]);
    let words: Vec<Vec<&str>> = said[0].lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words, [vec!["lin", "8.00m"], vec!["mirror", "7.00m", "y"], vec!["r10", "8.00m"]]);
    assert_eq!(said[1].split_whitespace().collect::<Vec<_>>(), ["vg", "t", "4", "3", "13"]);
    let shown = json(&lab.verb(&["vg", "show", "--json"]));
    assert_eq!((&shown[0]["seqno"], &shown[0]["volumes"]), (&13.into(), &3.into()));
    assert_eq!(shown[0]["attributes"], "wz--n-");
}

#[test]
fn volumes_lie_where_lvcreate_and_lvextend_put_them() {
    const SIZES: &[(&str, u64)] = &[("a", 40), ("b", 30), ("c", 50)];
    const STEPS: &[(&[&str], &str)] = &[
        (&["lv", "create", "vg/one", "--extents", "7"], "lvcreate -an -Zn -Wn -y -n one -l 7 vg"),
        (&["lv", "create", "vg/two", "--extents", "25"], "lvcreate -an -Zn -Wn -y -n two -l 25 vg"),
        (
            &["lv", "create", "vg/three", "--stripes", "2", "--extents", "9", "--addtag", "t"],
            "lvcreate -an -Zn -Wn -y -n three -i 2 -I 64k -l 9 --addtag t vg",
        ),
        (&["lv", "resize", "vg/one", "--extents", "+4"], "lvextend -y -l +4 vg/one"),
        (&["lv", "create", "vg/four", "--extents", "33"], "lvcreate -an -Zn -Wn -y -n four -l 33 vg"),
        (&["lv", "resize", "vg/three", "--extents", "+2"], "lvextend -y -l +2 vg/three"),
        (&["lv", "resize", "vg/two", "--extents", "20", "--force"], "lvreduce -y -f -l 20 vg/two"),
        (&["lv", "resize", "vg/two", "--extents", "+3"], "lvextend -y -l +3 vg/two"),
        (&["lv", "remove", "vg/one"], "lvremove -y vg/one"),
        (&["lv", "create", "vg/five", "--size", "6M"], "lvcreate -an -Zn -Wn -y -n five -L 6m vg"),
        (&["lv", "rename", "vg/five", "last"], "lvrename vg five last"),
    ];
    let (ours, theirs) = (Lab::new(SIZES), Lab::new(SIZES));
    run(&mut ours.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "-s", "1M"]));
    theirs.lvm(&["vgcreate -s 1M vg DISKS"]);
    for (verb, command) in STEPS {
        ours.verb(verb);
        theirs.lvm(&[command]);
        assert_eq!(ours.layout("vg"), theirs.layout("vg"), "after {command}");
    }
}

#[test]
fn lvm_and_we_take_turns() {
    let lab = Lab::new(&[("a", 64), ("b", 64)]);
    lab.lvm(&["vgcreate -s 1M --addtag theirs vg DISKS", "lvcreate -an -Zn -Wn -y -n lin -l 9 vg"]);
    lab.verb(&["lv", "create", "vg/ours", "--size", "4M"]);
    lab.lvm(&[
        "lvextend -y -l +3 vg/ours",
        "lvcreate -an -Zn -Wn -y -n more -i 2 -l 4 vg",
        "vgchange --addtag z vg",
    ]);
    lab.verb(&["lv", "resize", "vg/more", "--extents", "+2"]);
    lab.verb(&["lv", "rename", "vg/lin", "base"]);
    lab.lvm(&["lvrename vg base lin", "lvremove -y vg/ours", "lvreduce -y -f -l 5 vg/lin"]);
    let layout = lab.layout("vg");
    assert!(layout.iter().any(|line| line.starts_with("lin;linear;0;5;")), "{layout:?}");
}

#[test]
fn a_change_that_was_cut_half_way_is_old_or_new_to_lvm_and_the_next_change_mends_it() {
    let lab = Lab::new(&[("a", 16), ("b", 16), ("c", 16)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "-s", "1M"]));
    lab.verb(&["lv", "create", "vg/old", "--extents", "3"]);
    let before = lab.bytes();
    lab.verb(&["lv", "create", "vg/new", "--extents", "3"]);
    let after = lab.bytes();
    // The headers of the areas come last, one disk after the other: so far it got.
    for committed in 0..=3 {
        let mut images = after.clone();
        for (image, old) in images.iter_mut().zip(&before).skip(committed) {
            image[4096..4608].copy_from_slice(&old[4096..4608]);
        }
        lab.restore(&images);
        let said = lab.lvm(&["lvs --noheadings -o lv_name vg", "vgs --noheadings -o vg_seqno vg"]);
        let is_there = |word: &str| said[0].lines().any(|line| line.trim() == word);
        assert!(is_there("old"), "{committed}: {}", said[0]);
        assert_eq!(is_there("new"), committed > 0, "{committed}: {}", said[0]);
        lab.restore(&images);
        let name = format!("vg/mended{committed}");
        lab.verb(&["lv", "create", &name, "--extents", "1"]);
        let seqno = lab.lvm(&["vgs --noheadings -o vg_seqno vg"]).remove(0);
        assert_eq!(seqno.trim(), if committed > 0 { "4" } else { "3" });
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_reason_and_nothing_is_written() {
    let lab = Lab::new(&[("a", 32), ("b", 32)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "-s", "1M"]));
    lab.verb(&["lv", "create", "vg/lv", "--size", "20M"]);
    for (args, expected) in [
        (
            &["lv", "create", "vg/big", "--size", "50M"][..],
            "50 extents (50 MiB) are needed, 42 extents (42 MiB) are",
        ),
        (&["lv", "create", "vg/lv", "--size", "1M"], "vg/lv exists already"),
        (&["lv", "create", "vg/a_tdata", "--size", "1M"], "LVM's own"),
        (
            &["lv", "create", "vg/x", "--type", "raid1", "--size", "30M"],
            "on each of 2 physical volumes are needed",
        ),
        (&["lv", "create", "vg/x", "--size", "1M", "--nosync"], "--nosync: only the mirrors"),
        (&["lv", "create", "none/x", "--size", "1M"], "there is no volume group \"none\"; there are: vg"),
        (&["lv", "create", "x", "--size", "1M"], "expected VG/LV"),
        (&["lv", "resize", "vg/lv", "--size", "-1M"], "add --force"),
        (&["lv", "resize", "vg/lv", "--size", "20M"], "it has 20M already"),
        (&["lv", "remove", "vg/none"], "no logical volume \"vg/none\"; there are: lv"),
        (&["lv", "rename", "vg/lv", "other/lv"], "cannot go to another group"),
        (&["vg", "tag", "vg", "--addtag", "a b"], "the tag \"a b\""),
        (&["vg", "reduce", "vg", "a"], "these volumes lie on it: lv"),
        (&["vg", "extend", "vg", "a", "b"], "all of these disks belong to it already"),
        (&["vg", "create", "other", "a"], "it is a physical volume of the group vg"),
    ] {
        let said = lab.refused(args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    let one = run_refused(&mut lab.scratch.blockwork(["lv", "remove", "vg/lv", "--disk", "a"]));
    assert!(one.contains("is missing") && one.contains("give all disks of the group"), "{one}");

    let server = lab.scratch.serve(["--disk", "a", "b", "vg/lv"]);
    let busy = lab.refused(&["lv", "remove", "vg/lv"]);
    assert!(busy.contains(&format!("locked by process {} (blockwork)", server.pid())), "{busy}");
    server.stop_quietly();
    lab.verb(&["lv", "remove", "vg/lv"]);
}
