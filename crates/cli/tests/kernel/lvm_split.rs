//! An image that LVM has split off a RAID1 which tracks what changes since (`lvconvert --splitmirrors 1 --trackchanges`): it stays what
//! the volume was, whatever our clients write, LVM puts it back with what they wrote, and our verbs do with the two what LVM's would.

use crate::machine::{Facts, MIB, Machine, scribble, sha256_of};
use crate::support::nbd::{holder, python};
use crate::support::{output, run, run_refused, until};

const FUNCTIONS: &str = "
idle() { [ $(lvs --noheadings -o sync_percent,raid_sync_action vg/r | tr -d ' ') = 100.00idle ]; }
split() { lvconvert -y --splitmirrors 1 --trackchanges vg/r >&2; }
sound() { local said; said=$(vgck vg 2>&1) && [ -z \"$said\" ]; }
";

const DISKS: [&str; 2] = ["a", "b"];

#[test]
fn an_image_that_was_split_off_stays_as_it_is_until_lvm_puts_it_back_with_all_that_we_wrote() {
    let mut machine = Machine::new();
    DISKS.iter().for_each(|disk| machine.disk(disk, 64 * MIB));
    let made = machine.run(&format!(
        "{FUNCTIONS}
         vgcreate -s 1m vg /d/a /d/b >&2
         lvcreate -y --type raid1 -m 1 -L 16m -n r vg >&2
         wait_for idle
         whole write /dev/vg/r 1
         fact r sha256 $(sha256 /dev/vg/r)
         split
         pattern write /dev/vg/r 0 1048576 2
         vgchange -an vg >&2"
    ));
    let before = Facts(&made.stdout).get("r", "sha256").to_owned();

    let said = run(&mut machine.scratch.blockwork(["scan", "a", "b"]));
    let why =
        "it was split off r, which tracks what changes since; `lvconvert --merge vg/r_rimage_1` puts it back";
    assert!(said.contains(why), "{said}");
    let bytes = || DISKS.map(|disk| sha256_of(&machine.scratch.at(disk)));
    let as_they_are = bytes();
    let refused: [(&[&str], &str); 7] = [
        (&["lv", "rename", "vg/r", "other"], "r_rimage_1 was split off it"),
        (&["lv", "resize", "vg/r", "--size", "+1M"], "r_rimage_1 was split off it"),
        (&["lv", "rename", "vg/r_rimage_1", "other"], why),
        (&["lv", "resize", "vg/r_rimage_1", "--size", "+1M"], why),
        (&["lv", "snapshot", "vg/r_rimage_1", "--size", "1M", "--name", "snap"], why),
        (&["lv", "merge", "vg/r_rimage_1"], why),
        (&["lv", "remove", "vg/r_rimage_1"], why),
    ];
    for (args, expected) in refused {
        let said = run_refused(&mut machine.scratch.blockwork([args, &["--disk"], &DISKS].concat()));
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    assert_eq!(bytes(), as_they_are, "what was refused has changed something");

    let served = machine.serve(&DISKS, &[]);
    scribble(&machine, "vg/r", 3);
    assert_eq!(machine.sha256("vg/r_rimage_1"), before, "the image is not what the volume was");
    let uri = machine.scratch.uri("vg/r_rimage_1");
    assert_eq!(python(&format!("print(connect({uri:?}).is_read_only())")).trim(), "True");
    let written = machine.sha256("vg/r");
    served.stop();

    let judged = machine.run(&format!(
        "{FUNCTIONS}
         vgchange -ay vg >&2
         fact image sha256 $(sha256 /dev/vg/r_rimage_1)
         fact r sha256 $(sha256 /dev/vg/r)
         lvconvert -y --merge vg/r_rimage_1 >&2
         wait_for idle
         lvchange --syncaction check vg/r >&2
         wait_for idle
         fact r differs $(lvs --noheadings -o raid_mismatch_count vg/r)
         fact r merged $(sha256 /dev/vg/r)
         sound
         split
         vgchange -an vg >&2"
    ));
    let facts = Facts(&judged.stdout);
    assert_eq!(facts.get("image", "sha256"), before);
    assert_eq!([facts.get("r", "sha256"), facts.get("r", "merged")], [&*written, &*written]);
    assert_eq!(facts.number("r", "differs"), 0);

    // Linux has written nothing since, so that no superblock says that the image is out.
    let served = machine.serve(&DISKS, &[]);
    scribble(&machine, "vg/r", 4);
    assert_eq!(machine.sha256("vg/r_rimage_1"), written, "the image is not what the volume was");
    let holder = holder(&machine.scratch, "vg/r_rimage_1");
    let said = run_refused(&mut machine.scratch.blockwork(["lv", "remove", "vg/r"]));
    assert!(said.contains("r_rimage_1 is in use"), "{said}");
    drop(holder);
    until("both can be removed", || {
        output(&mut machine.scratch.blockwork(["lv", "remove", "vg/r"])).status.success()
    });
    served.stop();
    let judged = machine.run(&format!(
        "{FUNCTIONS}
         sound
         fact all volumes \"$(lvs -a --noheadings -o lv_name vg)\"
         fact all free $(vgs --noheadings -o vg_free_count vg)
         fact all extents $(vgs --noheadings -o vg_extent_count vg)"
    ));
    let facts = Facts(&judged.stdout);
    assert_eq!(facts.get("all", "volumes"), "");
    assert_eq!(facts.number("all", "free"), facts.number("all", "extents"));
}
