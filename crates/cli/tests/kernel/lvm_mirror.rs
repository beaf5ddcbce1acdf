//! Old mirrors of LVM whose first copy is missing: what of another one we read is what the real kernel reads.

use std::time::Duration;

use crate::machine::{Facts, MIB, Machine, expect_pattern, regions_read};

const SEED: u64 = 0x6d69_7272;

/// Bytes of a region, and regions of each mirror.
const REGION: u64 = 64 << 10;
const REGIONS: u64 = 80;

/// One mirror that is stopped in sync, one whose log was in memory, and one to which two regions are being written
/// when the power goes: its second copy takes no writes any more.
const MAKE: &str = r#"
modprobe dm-mirror
vgcreate -s 256k vg /d/a /d/b /d/c >&2
mirror() { lvcreate -y --type mirror -m 1 -R 64k -l 20 "$@" >&2; }
mirror -n clean --mirrorlog disk vg /d/a /d/b /d/c
mirror -n cut --mirrorlog disk vg /d/a /d/b /d/c
mirror -n core --mirrorlog core vg /d/a /d/b
in_sync() { [ $(lvs --noheadings -o sync_percent vg/$1) = 100.00 ]; }
for one in clean cut core; do
    wait_for in_sync $one
    whole write /dev/vg/$one $SEED
done
sync
# The bits of a log.
bits() { dd if=/dev/mapper/vg-$1_mlog bs=4k count=1 iflag=direct 2>/dev/null | od -An -v -tx1 -j1024 -N10 | tr -d ' '; }
bits_are() { [ "$(bits $1)" = $2 ]; }
for one in clean cut; do wait_for bits_are $one ffffffffffffffffffff; done
lvchange -an vg/clean vg/core >&2
lvs -a -o lv_name,devices vg >&2
dmsetup suspend --noflush --nolockfs vg-cut_mimage_1
dd if=/dev/zero of=/dev/vg/cut bs=128k seek=5 count=1 oflag=direct 2>/dev/null &
wait_for bits_are cut fff3ffffffffffffffff
power_cut
"#;

/// Which regions of the mirrors the kernel reads when the first copy is missing.
const JUDGE: &str = r#"
modprobe dm-mirror
vgchange -ay --activationmode partial vg >&2
dmsetup table >&2
for one in clean cut; do
    read=
    for n in $(seq 0 79); do
        if dd if=/dev/vg/$one of=/dev/null bs=64k skip=$n count=1 iflag=direct 2>/dev/null; then
            read=${read}1
        else
            read=${read}0
        fi
    done
    fact $one reads $read
done
dmsetup status >&2
"#;

#[test]
fn of_an_old_mirror_without_its_first_copy_what_its_log_has_as_in_sync_is_read() {
    let mut machine = Machine::new();
    for disk in ["a", "b", "c"] {
        machine.disk(disk, 40 * MIB);
    }
    machine.run_until_power_cut(Duration::from_secs(300), &format!("SEED={SEED}\n{MAKE}"));
    let before = machine.prints();
    // With all copies, the first is read, and nobody is warned.
    let served = machine.serve(&["a", "b", "c"], &["--read-only", "vg/clean", "vg/core"]);
    for name in ["vg/clean", "vg/core"] {
        assert_eq!(expect_pattern(name, machine.copy_out(name), SEED), REGIONS * REGION);
    }
    assert_eq!(served.stop(), "");
    let served = machine.serve(&["b", "c"], &["--read-only", "vg/clean", "vg/cut"]);
    assert_eq!(expect_pattern("vg/clean", machine.copy_out("vg/clean"), SEED), REGIONS * REGION);
    let ours = ["vg/clean", "vg/cut"].map(|name| regions_read(&machine, name, REGION, SEED));
    let said = served.stop();
    assert!(said.contains("2 of its 80 regions of 128 sectors, the first from sector 1280 on"), "{said}");
    for (disks, name, why) in [
        (&["b", "c"][..], "vg/core", "which regions are in sync was not kept on disk"),
        (&["b"], "vg/cut", "cut_mlog"),
    ] {
        let mut args = vec!["--read-only", "--disk"];
        args.extend(disks);
        args.push(name);
        let said = machine.scratch.refused(args);
        assert!(said.contains(why), "{said}");
    }
    machine.expect_untouched(&before);
    let judged = machine.run_with(&["b", "c"], JUDGE);
    let kernels = ["clean", "cut"].map(|name| Facts(&judged.stdout).get(name, "reads").to_owned());
    assert_eq!(ours, kernels);
    assert_eq!(ours[1].matches('0').count(), 2, "{}", ours[1]);
}
