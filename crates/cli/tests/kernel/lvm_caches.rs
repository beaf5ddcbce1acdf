//! Volumes with a cache that has what their origins have not: read by us as the kernel reads them.

use std::time::Duration;

use crate::machine::{Facts, MIB, Machine};
use crate::support::run;

/// Volumes of 8 MiB that have one pattern, and get a cache.
const MAKE: &str = r#"
modprobe -a dm-cache-smq dm-writecache
lv() { lvcreate -y "$@" >&2; }
vgcreate -s 256k vg /d/slow /d/fast /d/other >&2
for one in $VOLUMES; do
    lv -n $one -l 33 vg /d/slow
    whole write /dev/vg/$one $SEED
done
# Nearly as large as the volumes: a cache with no room left, which reading may take some of, is not the place for what is written.
for one in pool old; do lv --type cache-pool -n for_$one -L 8M --poolmetadatasize 2M --chunksize 160k vg /d/fast /d/other; done
for one in volume writes fine; do lv -n for_$one -L 8M vg /d/fast; done
cached() { lvconvert -y --type cache --chunksize 160k --cachemode writeback "$@" >&2; }
cached --cachepool vg/for_pool --cachemetadataformat 2 vg/pool
cached --cachepool vg/for_old --cachemetadataformat 1 vg/old
cached --cachevol vg/for_volume vg/volume
lvchange -an vg/for_writes vg/for_fine vg/writes vg/fine >&2
lvconvert -y --type writecache --cachevol vg/for_writes vg/writes >&2
lvconvert -y --type writecache --cachevol vg/for_fine --cachesettings 'block_size=512 low_watermark=99 high_watermark=100' vg/fine >&2
lvchange -ay vg/writes vg/fine >&2
"#;

/// A dozen chunks are written anew, others each time, and the end, which is no whole one.
const WRITE: &str = r#"
touched() { # volume, seed
    local size
    # Or else the kernel writes back what it has as soon as it has nothing else to do.
    case $1 in pool | old | volume) dmsetup message vg-$1 0 migration_threshold 0 ;; esac
    # Of whole chunks, written by one bio each, it believes at once that the cache is the place for them.
    truncate -s 1920k /tmp/chunks
    pattern write /tmp/chunks 0 1966080 $2
    dd if=/tmp/chunks of=/dev/vg/$1 bs=160k seek=$(($2 * 17)) oflag=direct conv=notrunc status=none
    size=$(blockdev --getsize64 /dev/vg/$1)
    pattern write /dev/vg/$1 $((size - 65536)) 65536 $2
    sync
}
# How many blocks are on the cache only.
dirty() {
    set -- $(dmsetup status vg-$1)
    if [ $3 = writecache ]; then echo $(($5 - $6)); else echo ${14}; fi
}
told() {
    fact vg/$1 dirty $(dirty $1)
    fact vg/$1 sha256 $(sha256 /dev/vg/$1)
}
"#;

const VOLUMES: [&str; 5] = ["pool", "old", "volume", "writes", "fine"];

/// What is served, compared with what the kernel told.
fn compare(machine: &Machine, facts: &Facts<'_>) {
    let names = VOLUMES.map(|name| format!("vg/{name}"));
    let mut args = vec!["--read-only"];
    args.extend(names.iter().map(String::as_str));
    let served = machine.serve(&machine.disks(), &args);
    // Linux writes back when it sees fit: one of them may have nothing more by then.
    let has_something = names.iter().filter(|name| facts.number(name, "dirty") > 8).count();
    assert!(has_something >= 4, "{has_something} caches have something");
    for name in &names {
        assert_eq!(machine.sha256(name), facts.get(name, "sha256"), "{name}");
    }
    served.stop();
}

#[test]
fn volumes_with_a_cache_that_writes_back_are_read_with_what_it_holds() {
    let mut machine = Machine::new();
    machine.disk("slow", 80 * MIB);
    machine.disk("fast", 68 * MIB);
    machine.disk("other", 8 * MIB);
    let head = format!("VOLUMES='{}' SEED=71\n{WRITE}", VOLUMES.join(" "));
    let made = machine.run(&format!(
        "{head}{MAKE}
         for one in $VOLUMES; do touched $one 1; told $one; done
         lvs -a -o +devices,seg_type >&2
         vgchange -an vg >&2"
    ));
    let before = machine.prints();
    compare(&machine, &Facts(&made.stdout));
    machine.expect_untouched(&before);
    // For writing they are not served, and not at all without what has a part of them.
    let said = machine.serve(&machine.disks(), &["vg/pool", "vg/writes"]).stop();
    assert_eq!(said.matches("lvconvert --uncache").count(), 2, "{said}");
    for (name, cache) in [("vg/pool", "for_pool"), ("vg/volume", "for_volume"), ("vg/writes", "for_writes")] {
        let said = machine.scratch.refused(["--read-only", "--disk", "slow", "other", name]);
        assert!(said.contains(name) && said.contains(cache) && said.contains("give the disk"), "{said}");
    }
    let shown =
        run(&mut machine.scratch.blockwork(["lv", "show", "--all", "vg", "--disk", "slow", "fast", "other"]));
    assert!(shown.contains("for_pool") && shown.contains("for_writes"), "{shown}");

    // What a cut leaves: nothing says what was written to.
    let cut = machine.run_until_power_cut(
        Duration::from_secs(300),
        &format!(
            "{head}
             modprobe -a dm-cache-smq dm-writecache
             lvm_up
             for one in $VOLUMES; do touched $one 2; told $one; done
             power_cut"
        ),
    );
    let facts = Facts(&cut.stdout);
    compare(&machine, &facts);
    let after = machine.run(&format!(
        "{head}
         lvm_up
         for one in $VOLUMES; do fact vg/$one sha256 $(sha256 /dev/vg/$one); done"
    ));
    for name in VOLUMES.map(|name| format!("vg/{name}")) {
        assert_eq!(Facts(&after.stdout).get(&name, "sha256"), facts.get(&name, "sha256"), "{name}");
    }
}
