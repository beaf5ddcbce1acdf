//! Volume groups that the real kernel and LVM made, read by us: every segment type, and not a byte written.

use std::time::Duration;

use crate::machine::{Facts, MIB, Machine, expect_pattern};
use crate::support::run;

const SEED: u64 = 0x6c76_6d01;

/// Groups and volumes. `filled VG LV` fills one and tells the host of it.
const MAKE: &str = r#"
filled() {
    whole write /dev/$1/$2 $SEED
    fact $1/$2 size $(size_of /dev/$1/$2)
}
lv() { lvcreate -y "$@" >&2; }
# A leg is in sync before anything is written, so that what is written is on all of them.
in_sync() { [ $(lvs --noheadings -o sync_percent $1) = 100.00 ]; }

# One group with two metadata areas on a disk, one without any, and one on a partition.
pvcreate -y --metadatacopies 2 /d/a >&2
pvcreate -y --metadatacopies 0 /d/b >&2
echo 'size=+' | sfdisk -q --label gpt /d/c
blockdev --rereadpt $(device /d/c)
pvcreate -y $(part /d/c 1) >&2
pvcreate -y --dataalignment 64k /d/d >&2
vgcreate -s 256k first-name /d/a /d/b $(part /d/c 1) /d/d >&2
vgrename first-name my-vg >&2

lv -n linear -l 7 my-vg
lv -n two--hyphens-x -l 3 my-vg
lv -n striped2 -i 2 -I 4k -l 10 my-vg
lv -n striped4 -i 4 -I 64k -l 16 my-vg
# Segments of different kinds and places.
lv -n mixed -l 2 my-vg /d/a
lvextend -l +3 my-vg/mixed /d/b >&2
lvextend -l +4 -i 2 -I 32k my-vg/mixed /d/a /d/d >&2
lvextend -l +1 -i 1 my-vg/mixed $(part /d/c 1) >&2
lv -n moved -l 6 my-vg /d/a
filled my-vg moved
pvmove -i 0 -n moved /d/a /d/d >&2
lv -n shrunk -l 9 my-vg
lvreduce -y -f -l 4 my-vg/shrunk >&2
lv -n raid0 --type raid0 -i 3 -I 64k -l 9 my-vg
lv -n raid0meta --type raid0_meta -i 2 -I 16k -l 6 my-vg
lv -n raid1 --type raid1 -m 1 -l 6 my-vg
lv -n raid1x3 --type raid1 -m 2 -R 64k -l 5 my-vg
lv -n raid10 --type raid10 -i 2 -m 1 -I 16k -l 8 my-vg
lv -n converted -l 5 my-vg
lvconvert -y --type raid1 -m 1 -R 64k my-vg/converted >&2
lv -n wm --type raid1 -m 1 -l 4 my-vg
for one in raid1 raid1x3 raid10 converted wm; do wait_for in_sync my-vg/$one; done
lvchange --writemostly $(lvs --noheadings -o devices my-vg/wm_rimage_0 -a 2>/dev/null | sed 's/(.*//; s/ //g') my-vg/wm >&2
for one in linear two--hyphens-x striped2 striped4 mixed shrunk raid0 raid0meta raid1 raid1x3 raid10 converted wm; do filled my-vg $one; done
# The old mirrors: with what is in sync on record, and not.
lv -n old --type mirror -m 1 --mirrorlog core -R 64k -l 5 my-vg
lv -n oldlog --type mirror -m 1 --mirrorlog disk -R 64k -l 5 my-vg
for one in old oldlog; do wait_for in_sync my-vg/$one; filled my-vg $one; done
lv -n readonly -l 2 my-vg
filled my-vg readonly
lvchange -pr my-vg/readonly >&2
lvchange --addtag @tag my-vg/linear >&2

# An array as physical volume, and an array on logical volumes.
md_create /dev/md0 below --level=10 --layout=n2 --chunk=64 --raid-devices=3 --assume-clean /d/e /d/f /d/g
pvcreate -y /dev/md0 >&2
vgcreate -s 256k on-md /dev/md0 >&2
lv -n deep -l 12 on-md
filled on-md deep
lv -n leg0 -l 10 on-md
lv -n leg1 -l 10 on-md
md_create /dev/md1 above --level=1 --raid-devices=2 --assume-clean /dev/on-md/leg0 /dev/on-md/leg1
whole write /dev/md1 $SEED
fact md/above size $(size_of /dev/md1)

# What is only shown.
vgcreate -s 256k shown /d/h >&2
lv -n plain -l 4 shown
filled shown plain
lv -n origin -l 8 shown
filled shown origin
lv -n snap -s -l 4 shown/origin
fact shown/snap size $(size_of /dev/shown/snap)
lv --type thin-pool -n pool -l 8 shown
lv -T -n thin -V 1m shown/pool
filled shown thin

# Caches: a pool of two volumes, one volume for both, and one that may have what its origin has not.
vgcreate -s 256k cached /d/i /d/j >&2
for one in through volume back; do lv -n $one -l 12 cached /d/i; done
for one in through back; do lv --type cache-pool -n for_$one -L 2M --poolmetadatasize 2M cached /d/j; done
lv -n for_volume -L 12M cached /d/j
lvconvert -y --type cache --cachepool cached/for_through --cachemode writethrough cached/through >&2
lvconvert -y --type cache --cachepool cached/for_back --cachemode writeback cached/back >&2
lvconvert -y --type cache --cachevol cached/for_volume --cachemode passthrough cached/volume >&2
for one in through back volume; do filled cached $one; done

lvs -a --noheadings --units s --nosuffix --separator ' ' -o vg_name,lv_name,lv_size >/out/lvs
vgs >&2
"#;

const REFUSED: &[(&str, &str)] = &[("shown/pool", "thin pool")];

const MIRRORED: &[&str] = &["my-vg/raid1", "my-vg/raid1x3", "my-vg/raid10", "my-vg/converted", "my-vg/wm"];

#[test]
fn volumes_of_every_kind_are_read_whole_and_those_of_other_kinds_are_refused_by_name() {
    let mut machine = Machine::new();
    for disk in ["a", "b", "c", "d"] {
        machine.disk(disk, 40 * MIB);
    }
    for disk in ["e", "f", "g", "h", "i"] {
        machine.disk(disk, 16 * MIB);
    }
    machine.disk("j", 40 * MIB);
    let made = machine.run(&format!("SEED={SEED}\n{MAKE}"));
    let facts = Facts(&made.stdout);
    let names: Vec<&str> =
        made.stdout.lines().filter_map(|line| line.split_once(" size ")).map(|(name, _)| name).collect();
    assert!(names.len() > 23, "{names:?}");
    let before = machine.prints();
    for order in [
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
        ["j", "h", "d", "g", "b", "f", "i", "c", "e", "a"],
    ] {
        let mut args = vec!["--read-only"];
        args.extend(&names);
        let served = machine.serve(&order, &args);
        for name in &names {
            let length = expect_pattern(name, machine.copy_out(name), SEED);
            assert_eq!(length, facts.number(name, "size"), "{name}");
        }
        served.stop();
    }
    for (name, why) in REFUSED {
        let mut args = vec!["--read-only", "--disk"];
        args.extend(machine.disks());
        args.push(name);
        let said = machine.scratch.refused(args);
        assert!(said.contains(name) && said.contains(why), "{said}");
    }
    // Without names, what can be served is.
    let served = machine.serve(&machine.disks(), &["--read-only"]);
    expect_pattern("served by itself", machine.copy_out("my-vg/striped4"), SEED);
    let said = served.stop();
    // Of the pool its volume is served: that is not missed.
    assert!(!said.contains("not served"), "{said}");
    // What is written through is there without the cache.
    let served = machine.serve(&["i"], &["--read-only", "cached/through", "cached/volume"]);
    for name in ["cached/through", "cached/volume"] {
        expect_pattern(name, machine.copy_out(name), SEED);
    }
    served.stop();
    // Whichever of the group's disks is missing, mirrors have another leg.
    for lost in ["a", "b", "c", "d"] {
        let given: Vec<&str> = machine.disks().into_iter().filter(|disk| *disk != lost).collect();
        let mut args = vec!["--read-only"];
        args.extend(MIRRORED);
        let served = machine.serve(&given, &args);
        for name in MIRRORED {
            expect_pattern(&format!("{name} without {lost}"), machine.copy_out(name), SEED);
        }
        served.stop();
    }
    machine.expect_untouched(&before);
}

/// A volume whose first segment is moved, and the second half-way, when the power goes. It was written to in the meantime. Only the
/// copying reads from the disk that it leaves, so how long that takes is in our hands.
const MOVE: &str = r#"
modprobe dm-mirror
on_delay a
vgcreate -s 256k vg /d/a /d/b >&2
lvcreate -y -n before -l 20 vg /d/a >&2
lvcreate -y -n between -l 4 vg /d/a >&2
lvextend -l +90 vg/before /d/a >&2
whole write /dev/vg/before $SEED
sync
reads_take a 200
pvmove -b -i 1 -n before /d/a /d/b >&2
# Of the second of two segments, in regions of 2 MiB.
copied() { dmsetup status vg-pvmove0 | sed -nE '2s@.* ([0-9]+)/[0-9]+ .*@\1@p'; }
half_way() { local so_far; so_far=$(copied); [ -n "$so_far" ] && [ $so_far -ge 4 ] && [ $so_far -lt 9 ]; }
wait_for half_way
# A write waits for the region of it that is being copied, so not for ever.
reads_take a 5000
whole write /dev/vg/before $((SEED + 1))
sync
dmsetup table >&2
dmsetup status >&2
fact vg/before copied $(copied)
power_cut
"#;

#[test]
fn a_volume_that_pvmove_was_moving_is_read_where_its_content_is() {
    let mut machine = Machine::new();
    for disk in ["a", "b"] {
        machine.disk(disk, 40 * MIB);
    }
    let cut = machine.run_until_power_cut(Duration::from_secs(300), &format!("SEED={SEED}\n{MOVE}"));
    let copied = Facts(&cut.stdout).number("vg/before", "copied");
    assert!((4..12).contains(&copied), "it is still being moved: {copied} of 12 regions");
    let before = machine.prints();
    let shown = run(&mut machine.scratch.blockwork(["lv", "show", "--all", "vg", "--disk", "a", "b"]));
    assert!(shown.contains("pvmove0"), "{shown}");
    let read = |args: &[&str]| {
        let served = machine.serve(&["a", "b"], args);
        expect_pattern("vg/before", machine.copy_out("vg/before"), SEED + 1);
        served.stop()
    };
    read(&["--read-only", "vg/before"]);
    machine.expect_untouched(&before);
    let said = read(&["vg/before"]);
    assert!(said.contains("`pvmove --abort`"), "{said}");
    // Linux goes on, and has the same.
    machine.run(&format!(
        "lvm_up
         whole verify /dev/vg/before {}
         moved() {{ [ -z \"$(lvs -a --noheadings -o lv_name -S lv_name=pvmove0 vg)\" ]; }}
         wait_for moved
         forget
         whole verify /dev/vg/before {}",
        SEED + 1,
        SEED + 1
    ));
    let said = read(&["vg/before"]);
    assert_eq!(said, "", "it can be written again");
}
