//! Thin pools: volumes that are read from where their pool says, and pools that are refused because LVM and they do not agree.

mod lab;

use std::collections::BTreeMap;

use blockwork_format::thin::build::{Contents, Device, Mappings, build};
use blockwork_format::thin::{BLOCK_BYTES, BlockKind, BlockTime, DeviceDetails};
use blockwork_volume::{Assembly, Plan};
use lab::{
    EXTENT, Group, HIDDEN, Lab, PE_START, SEEN, commit, content, linear, lv, numbered, pv, refused, volume,
    warning,
};

const BLOCK: u64 = 128;
const META_EXTENTS: u64 = 16;
const DATA_EXTENTS: u64 = 176;
const THIN_EXTENTS: u64 = 80;

/// What a group says of its pool and volumes.
struct Text<'a> {
    transaction_id: u64,
    chunk: u64,
    messages: &'a str,
    more: &'a str,
    device: u64,
}

const TEXT: Text<'_> = Text { transaction_id: 5, chunk: BLOCK, messages: "", more: "", device: 1 };

/// A pool on one disk: device 1 maps blocks 1 and 3 to 4 and 9; then a volume of it, and one that is its external origin.
fn disk(lab: &Lab, text: &Text<'_>) -> lab::Disk {
    let disk = pv(lab, "a", 0, 300);
    let mapping = |block| BlockTime { block, time: 0 };
    let map = BTreeMap::from([(1, mapping(4)), (3, mapping(9)), (4, mapping(10))]);
    let contents = Contents {
        data_block_sectors: 128,
        data_blocks: DATA_EXTENTS * EXTENT / BLOCK,
        metadata_blocks: META_EXTENTS * EXTENT / 8,
        time: 0,
        transaction_id: 5,
        devices: BTreeMap::from([(
            1,
            Device { details: DeviceDetails::default(), mappings: Mappings::Own(map) },
        )]),
    };
    for piece in build(&contents).unwrap() {
        disk.write(PE_START * 512 + piece.offset, &piece.bytes);
    }
    let Text { transaction_id, chunk, messages, more, device } = text;
    let pool = format!(
        "metadata = \"meta\" pool = \"data\" transaction_id = {transaction_id} chunk_size = {chunk} {messages}"
    );
    let thin = format!("thin_pool = \"pool\" transaction_id = 0 device_id = {device} {more}");
    let lvs = vec![
        lv("meta", 1, HIDDEN, &[("striped", META_EXTENTS, &*linear(0, 0))]),
        lv("data", 2, HIDDEN, &[("striped", DATA_EXTENTS, &*linear(0, META_EXTENTS))]),
        lv("pool", 3, SEEN, &[("thin-pool", DATA_EXTENTS, &*pool)]),
        lv("thin", 4, SEEN, &[("thin", THIN_EXTENTS, &*thin)]),
        lv("base", 5, "\"READ\", \"VISIBLE\"", &[("striped", 20, &*linear(0, 200))]),
    ];
    let group = Group { name: "vg0", id: 'g', seqno: 1, more: "", pvs: &[(0, 300)], lvs };
    commit(&disk, &group.text());
    disk
}

/// What the volume holds, sector by sector; `hole` says what is where nothing is mapped.
fn by_hand(hole: impl Fn(u64) -> Vec<u8>) -> Vec<u8> {
    let data = PE_START + META_EXTENTS * EXTENT;
    let sector = |sector: u64| match sector / BLOCK {
        1 => numbered(0, data + 4 * BLOCK + sector % BLOCK).to_vec(),
        3 => numbered(0, data + 9 * BLOCK + sector % BLOCK).to_vec(),
        4 => numbered(0, data + 10 * BLOCK + sector % BLOCK).to_vec(),
        _ => hole(sector),
    };
    (0..THIN_EXTENTS * EXTENT).flat_map(sector).collect()
}

#[test]
fn a_thin_volume_is_read_from_where_its_pool_says_and_holes_are_zeros() {
    let lab = Lab::new();
    let disk = disk(&lab, &TEXT);
    let mut assembly = lab.open(&[&disk]);
    let thin = volume(&mut assembly, "vg0/thin");
    assert!(thin.read_only);
    assert!(content(&assembly, &thin) == by_hand(|_| vec![0; 512]));
    let said = refused(&mut assembly, "vg0/pool");
    assert!(said.contains("it is a thin pool, whose volumes can be served"), "{said}");
    assert_eq!(assembly.warnings(), [] as [&str; 0]);
}

#[test]
fn holes_of_a_volume_with_an_external_origin_are_the_origins_and_zeros_behind_its_end() {
    let lab = Lab::new();
    let disk = disk(&lab, &Text { more: "external_origin = \"base\"", ..TEXT });
    let mut assembly = lab.open(&[&disk]);
    let thin = volume(&mut assembly, "vg0/thin");
    let base = PE_START + 200 * EXTENT;
    let hole = |sector| {
        if sector < 20 * EXTENT { numbered(0, base + sector).to_vec() } else { vec![0; 512] }
    };
    assert!(content(&assembly, &thin) == by_hand(hole));
}

#[test]
fn a_volume_into_which_a_snapshot_is_to_be_merged_is_what_the_snapshot_is() {
    let lab = Lab::new();
    let disk = disk(&lab, &TEXT);
    let thin = |device: u64, more: &str| {
        format!("thin_pool = \"pool\" transaction_id = 0 device_id = {device} {more}")
    };
    let pool = format!("metadata = \"meta\" pool = \"data\" transaction_id = 5 chunk_size = {BLOCK}");
    let lvs = vec![
        lv("meta", 1, HIDDEN, &[("striped", META_EXTENTS, &*linear(0, 0))]),
        lv("data", 2, HIDDEN, &[("striped", DATA_EXTENTS, &*linear(0, META_EXTENTS))]),
        lv("pool", 3, SEEN, &[("thin-pool", DATA_EXTENTS, &*pool)]),
        // Device 2, which nobody has to know any more: Linux deletes it when it has merged.
        lv("thin", 4, SEEN, &[("thin", THIN_EXTENTS, &*thin(2, ""))]),
        lv("snap", 5, HIDDEN, &[("thin", THIN_EXTENTS, &*thin(1, "origin = \"thin\" merge = \"thin\""))]),
    ];
    commit(&disk, &Group { name: "vg0", id: 'g', seqno: 2, more: "", pvs: &[(0, 300)], lvs }.text());
    let mut assembly = lab.open(&[&disk]);
    let thin = volume(&mut assembly, "vg0/thin");
    assert!(content(&assembly, &thin) == by_hand(|_| vec![0; 512]));
    let report = blockwork_volume::scan(&assembly);
    let used = |name: &str| {
        let lv = report.groups[0].lvs.iter().find(|lv| lv.name == name).unwrap();
        lv.usage.as_ref().unwrap().data_used
    };
    assert_eq!((used("thin"), used("snap")), (3 << 16, 3 << 16));
}

#[test]
fn the_fill_of_pool_and_volume_is_in_the_report() {
    let lab = Lab::new();
    let disk = disk(&lab, &TEXT);
    let assembly = lab.open(&[&disk]);
    let report = blockwork_volume::scan(&assembly);
    let usage = |name: &str| {
        let lv = report.groups[0].lvs.iter().find(|lv| lv.name == name).unwrap();
        lv.usage.clone()
    };
    let pool = usage("pool").unwrap();
    let percent = |part: u64, whole: u64| (10_000.0 * part as f64 / whole as f64).round() / 100.0;
    assert_eq!((pool.data_used, pool.data_percent), (3 << 16, percent(3 * BLOCK, DATA_EXTENTS * EXTENT)));
    assert!(pool.metadata_percent.unwrap() > 10.0, "a tenth is kept in reserve: {pool:?}");
    let thin = usage("thin").unwrap();
    assert_eq!((thin.data_used, thin.data_percent), (3 << 16, percent(3 * BLOCK, THIN_EXTENTS * EXTENT)));
    assert!(usage("base").is_none());
}

#[test]
fn pools_on_which_lvm_and_the_metadata_do_not_agree_are_refused_with_what_to_do() {
    for (text, why) in [
        (
            Text { transaction_id: 6, ..TEXT },
            "its superblock has transaction 5, and the group's metadata 6: the pool's",
        ),
        (
            Text { transaction_id: 4, ..TEXT },
            "its superblock has transaction 5, and the group's metadata 4: the group's",
        ),
        (
            Text { chunk: 256, ..TEXT },
            "its superblock has blocks of 128 sectors, and the group's metadata 256",
        ),
        (Text { device: 2, ..TEXT }, "its pool pool knows no device 2"),
        (Text { more: "merge = \"base\"", ..TEXT }, "it is being merged into base: serve that"),
    ] {
        let lab = Lab::new();
        let disk = disk(&lab, &text);
        let said = refused(&mut lab.open(&[&disk]), "vg0/thin");
        assert!(said.contains(why), "{said}");
    }
    // What has yet to be told to the pool is counted already.
    let lab = Lab::new();
    let messages = "message1 { create = \"thin\" }";
    let disk = disk(&lab, &Text { transaction_id: 6, messages, ..TEXT });
    volume(&mut lab.open(&[&disk]), "vg0/thin");
}

#[test]
fn a_pool_that_needs_a_check_is_read_with_a_warning_and_a_damaged_one_not_at_all() {
    let lab = Lab::new();
    let disk = disk(&lab, &TEXT);
    let mut block = Box::new([0; BLOCK_BYTES]);
    block.copy_from_slice(&disk.bytes()[PE_START as usize * 512..][..BLOCK_BYTES]);
    block[4] = 1;
    BlockKind::Superblock.seal(0, &mut block);
    disk.write(PE_START * 512, &block[..]);
    let mut assembly = lab.open(&[&disk]);
    volume(&mut assembly, "vg0/thin");
    warning(&assembly, "set the flag needs_check");
    block[50] ^= 1;
    disk.write(PE_START * 512, &block[..]);
    let said = refused(&mut lab.open(&[&disk]), "vg0/thin");
    assert!(said.contains("thin superblock at 0: checksum is"), "{said}");
    assert!(said.contains("thin_repair"), "{said}");
}

#[test]
fn two_pools_of_a_table_have_no_device_in_common() {
    let lab = Lab::new();
    let contents = Contents {
        data_block_sectors: 128,
        data_blocks: 32,
        metadata_blocks: 256,
        time: 0,
        transaction_id: 0,
        devices: BTreeMap::new(),
    };
    let metadata: Vec<_> = ["m1", "m2"].map(|name| lab.disk(name, 256 * 8)).into();
    for piece in build(&contents).unwrap() {
        metadata.iter().for_each(|disk| disk.write(piece.offset, &piece.bytes));
    }
    let data: Vec<_> = ["d1", "d2"].map(|name| lab.disk(name, 32 * BLOCK)).into();
    let line = |name: &str, metadata: &lab::Disk, data: &lab::Disk| {
        let length = 32 * BLOCK;
        format!("{name}: 0 {length} thin-pool {} {} 128 0\n", metadata.path.display(), data.path.display())
    };
    let assemble = |lines: String| {
        let table = lab.disk("table", 0);
        table.write(0, lines.as_bytes());
        let tables = vec![table.path.to_str().unwrap().to_owned()];
        let made = Assembly::open(Plan { tables, ..Plan::default() }).map(drop);
        std::fs::remove_file(&table.path).unwrap();
        made
    };
    let first = line("one", &metadata[0], &data[0]);
    assemble(first.clone() + &line("two", &metadata[1], &data[1])).unwrap();
    for (m, d) in [(0, 1), (1, 0)] {
        let error = assemble(first.clone() + &line("two", &metadata[m], &data[d])).unwrap_err().to_string();
        assert!(error.contains("is part of another thin-pool"), "{error}");
    }
}
