//! Thin pools that the real kernel and LVM made, read by us: every volume and snapshot by its hash, how full pools are by what
//! `lvs` says, the metadata by `thin_dump` and `thin_check`, and not a byte written.

use std::collections::BTreeMap;

use crate::machine::{Facts, MIB, Machine};
use crate::support::{Scratch, output, run, tool};
use blockwork_format::thin::tree::Reader;
use blockwork_format::thin::{BLOCK_BYTES, Bitmap, BlockKind, MetadataIndex, Superblock, dump, read_block};
use blockwork_layer::thin::check::check;
use serde_json::Value;

/// Pools of three sizes of block. `filled NAME OFFSET SIZE` writes a pattern to a part of a volume.
const MAKE: &str = r#"
lv() { lvcreate -y "$@" >&2; }
filled() { pattern write /dev/vg/$1 $2 $3 $((0x7468696e + $2)); }
dropped() { blkdiscard -o $2 -l $3 /dev/vg/$1; }
KIB=1024
MIB=$((1024 * KIB))

pvcreate -y /d/a /d/b >&2
vgcreate -s 1m vg /d/a /d/b >&2

# Written in pieces, shared, written again, discarded, shared again.
lv --type thin-pool -n small -c 64k -L 40m --poolmetadatasize 4m vg
lv -T -n one -V 24m vg/small
filled one 0 $((9 * MIB)); filled one $((15 * MIB)) $((512 * KIB)); filled one $((24 * MIB - 4096)) 4096
lv -s -kn -n snap vg/one
filled one $((2 * MIB)) $((3 * MIB)); filled snap $((4 * MIB)) $((100 * KIB)); dropped one $((6 * MIB)) $MIB
lv -s -kn -n snapsnap vg/snap
filled snapsnap $((20 * MIB)) $MIB; filled snap $((700 * KIB)) $MIB; dropped snapsnap 0 $((2 * MIB + 64 * KIB))
lv -s -kn -n third vg/snapsnap
lv -T -n empty -V 8t vg/small
lv -T -n gone -V 4m vg/small
filled gone 0 $MIB
lvremove -y vg/gone >&2

# A volume that reads through to one outside of the pool, which is smaller than it becomes.
lv -n base -L 6m vg
filled base 0 $((6 * MIB))
lvchange -pr vg/base >&2
lvchange -an vg/base >&2
lv -s -kn -n onbase --thinpool vg/small vg/base
filled onbase $((MIB + 4096)) $((300 * KIB))
lvextend -L 9m vg/onbase >&2

# Blocks of 1 MiB and of 192 KiB.
lv --type thin-pool -n big -c 1m -L 24m --poolmetadatasize 4m vg
lv -T -n large -V 100m vg/big
filled large $((3 * MIB + 4096)) $((6 * MIB)); filled large $((99 * MIB)) $((64 * KIB))
lv -s -kn -n largesnap vg/large
filled large $((5 * MIB)) 4096
lv --type thin-pool -n odd -c 192k -L 24m --poolmetadatasize 4m vg
lv -T -n uneven -V 31m vg/odd
filled uneven 8192 $((5 * MIB)); dropped uneven $((192 * KIB * 3)) $((192 * KIB * 5))

# Thousands of fragments.
lv --type thin-pool -n many -c 64k -L 100m --poolmetadatasize 4m vg
lv -T -n crumbs -V 256m vg/many
fio --name=crumbs --filename=/dev/vg/crumbs --rw=randwrite --bs=64k --io_size=90m --direct=1 --randseed=7 --ioengine=libaio \
    --iodepth=16 --allow_file_create=0 >&2
lv -s -kn -n crumbsnap vg/crumbs
fio --name=crumbs --filename=/dev/vg/crumbs --rw=randwrite --bs=64k --io_size=6m --direct=1 --randseed=8 --ioengine=libaio \
    --iodepth=16 --allow_file_create=0 >&2

sync
for one in one snap snapsnap third onbase large largesnap uneven crumbs crumbsnap; do
    fact vg/$one sha256 $(sha256 /dev/vg/$one)
done
lvs --noheadings --separator ' ' -o vg_name,lv_name,data_percent,metadata_percent vg |
    while read group name percents; do fact $group/$name percent "$percents"; done
vgchange -an vg >&2
for pool in small big odd many; do
    lvchange -ay -y vg/${pool}_tmeta >&2
    cat /dev/vg/${pool}_tmeta >/out/$pool
    thin_dump /dev/vg/${pool}_tmeta >/out/$pool.xml
    lvchange -an vg/${pool}_tmeta >&2
done
"#;

const POOLS: [&str; 4] = ["small", "big", "odd", "many"];

#[test]
fn pools_that_the_kernel_made_are_read_whole_and_nothing_is_written() {
    let mut machine = Machine::new();
    machine.disk("a", 160 * MIB);
    machine.disk("b", 96 * MIB);
    let made = machine.run(MAKE);
    let before = machine.prints();
    expect_hashes(&machine, Facts(&made.stdout));
    expect_percents(&machine, Facts(&made.stdout));
    let scratch = Scratch::new();
    for pool in POOLS {
        let metadata = &made.files[pool];
        let superblock = Superblock::decode(&read_block(metadata, 0).unwrap()).unwrap().unwrap();
        let mut ours = String::new();
        dump(Reader::new(metadata), &superblock, &mut ours).unwrap();
        assert!(
            ours.as_bytes() == made.files[&format!("{pool}.xml")],
            "{pool}: thin_dump says something else"
        );
        let report = check(metadata);
        assert!(report.is_good(), "{pool}: {:#?}", report.problems);
        expect_same_verdicts(&scratch, pool, metadata);
    }
    machine.expect_untouched(&before);
}

fn expect_hashes(machine: &Machine, facts: Facts<'_>) {
    let volumes =
        ["one", "snap", "snapsnap", "third", "onbase", "large", "largesnap", "uneven", "crumbs", "crumbsnap"];
    let names: Vec<String> = volumes.iter().map(|name| format!("vg/{name}")).collect();
    let mut args = vec!["--read-only"];
    args.extend(names.iter().map(String::as_str));
    args.push("vg/empty");
    let served = machine.serve(&["b", "a"], &args);
    for name in &names {
        assert_eq!(machine.sha256(name), facts.get(name, "sha256"), "{name}");
    }
    served.stop();
}

/// What `lvs` shows of pools and volumes is what `scan` shows.
fn expect_percents(machine: &Machine, facts: Facts<'_>) {
    let said = run(machine.scratch.blockwork(["scan", "--json"]).args(machine.disks()));
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let lvs = report["groups"][0]["lvs"].as_array().expect("volumes");
    let mut compared = 0;
    for lv in lvs.iter().filter(|lv| lv["usage"].is_object()) {
        let name = format!("vg/{}", lv["name"].as_str().expect("a name"));
        let percents = ["data_percent", "metadata_percent"].map(|field| &lv["usage"][field]);
        let ours: Vec<String> = percents
            .iter()
            .filter_map(|percent| percent.as_f64())
            .map(|percent| format!("{percent:.2}"))
            .collect();
        assert_eq!(ours.join(" "), facts.get(&name, "percent"), "{name}");
        compared += 1;
    }
    assert_eq!(compared, 4 + 11, "{said}");
}

/// What we call damage and `thin_check` 0.9 does not: it looks neither whether data blocks are there, nor how often
/// they are counted, nor at these fields.
const STRICTER: [&str; 9] = [
    "data block",
    "flags is",
    "magic is",
    "bitmap is",
    "bitmaps; expected",
    "maps ",
    "no details",
    "no tree of mappings",
    "has the number",
];

/// Damages metadata in some dozens of ways: whatever `thin_check` calls bad is bad to us, and what is bad only to us is of a kind
/// that it does not look at.
fn expect_same_verdicts(scratch: &Scratch, pool: &str, metadata: &[u8]) {
    let used = used_blocks(metadata);
    let mut verdicts = BTreeMap::new();
    for seed in 0..24 {
        let damaged = damage(metadata, &used, seed);
        let path = scratch.write("damaged", &damaged);
        let theirs = output(tool("thin_check").args(["-q", &path])).status.success();
        let report = check(&damaged);
        let is_stricter = |problem: &String| STRICTER.iter().any(|what| problem.contains(what));
        let agreed = report.is_good() == theirs || theirs && report.problems.iter().all(is_stricter);
        assert!(agreed, "{pool}, seed {seed}: {theirs} by thin_check, and by us {:#?}", report.problems);
        *verdicts.entry(theirs).or_insert(0) += 1;
    }
    assert!(verdicts[&false] > 10, "{verdicts:?}");
}

/// Blocks that are in use, with what they are.
fn used_blocks(metadata: &[u8]) -> Vec<(u64, BlockKind)> {
    let superblock = Superblock::decode(&read_block(&metadata, 0).unwrap()).unwrap().unwrap();
    let root = superblock.metadata_space_map;
    let index = read_block(&metadata, root.bitmap_root).unwrap();
    let index = MetadataIndex::decode(root.bitmap_root, &index, root.bitmaps()).unwrap();
    let bitmap = index.entries[0].block;
    let bitmap = Bitmap::decode(bitmap, read_block(&metadata, bitmap).unwrap()).unwrap();
    let kinds = [BlockKind::Superblock, BlockKind::Node, BlockKind::Bitmap, BlockKind::Index];
    // These devices are so small that one bitmap counts all of them.
    let blocks = (0..root.blocks).filter(|block| bitmap.get(*block) > 0);
    let sealed = |nr| {
        let block = read_block(&metadata, nr).expect("it is in memory");
        kinds.into_iter().find(|kind| kind.verify(nr, &block).is_ok()).map(|kind| (nr, kind))
    };
    blocks.filter_map(sealed).collect()
}

/// Changes a byte of one block that is in use; every other time so that its checksum is right.
fn damage(metadata: &[u8], used: &[(u64, BlockKind)], seed: u64) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7468_696e;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).expect("below a length")
    };
    let mut damaged = metadata.to_vec();
    let (nr, kind) = used[next(used.len())];
    let start = usize::try_from(nr).expect("a small device") * BLOCK_BYTES;
    let block: &mut [u8; BLOCK_BYTES] =
        (&mut damaged[start..start + BLOCK_BYTES]).try_into().expect("a whole block");
    // Mostly where there is something: header, first keys, first values.
    let at = [4 + next(28), 32 + next(64), 2048 + next(64), 4 + next(BLOCK_BYTES - 4)][next(4)];
    block[at] ^= 1 << next(8);
    if seed.is_multiple_of(2) {
        kind.seal(nr, block);
    }
    damaged
}
