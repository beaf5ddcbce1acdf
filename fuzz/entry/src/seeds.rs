//! The seeds of the corpora, made with the writers of the formats: good inputs, small, that mutations start from.
//!
//! `cargo run -p blockwork-fuzz-entry --example seeds` writes them to `fuzz/corpus`; a test fails where the files there
//! are not what is made here. Files beside them (what a fuzzer found) stay as they are.

mod caches;

use blockwork_format::blktrace::{Act, Category, Device, Record, Remap};
use blockwork_format::dm_raid;
use blockwork_format::log_writes::{Flags, Writer};
use blockwork_format::md::bitmap::BitmapSuperblock;
use blockwork_format::md::v1::{Features, Minor, Region, Reshape};
use blockwork_format::md::{IN_SYNC, Level, Role, SetName, Time, Uuid, bad_blocks, v0, v1};
use blockwork_format::partition::gpt::{GptPartition, Layout, fix_crcs};
use blockwork_format::partition::mbr::{self, ExtendedPartition, MbrPartition};
use blockwork_format::partition::{Guid, gpt};
use blockwork_format::snapshot::{self, Exception, Header};
use blockwork_format::thin::build::{self, Contents, Mappings, build};
use blockwork_format::thin::{BLOCK_BYTES, BlockKind, BlockTime, DeviceDetails};
use blockwork_format::vhost_user::inflight;
use blockwork_format::vhost_user::{
    ConfigPart, InflightArea, Message, Region as GuestRegion, VringAddr, VringFile, VringState,
};
use blockwork_format::virtio::{Descriptor, PackedDescriptor};

use crate::blkif;
use crate::exception_store::FIX_HEADER;
use crate::lvm2;
use crate::md::{FIX_CHECKSUM, FIX_PLACE};
use crate::mirror_log;
use crate::nbd;
use crate::nfs3;
use crate::nfs4;
use crate::partition::{BLOCKS_OF_4096, FIX_CRCS, GPT_HEADER_BYTES, PIECE_MISSING, WITH_HINT};
use crate::thin_edit::Operation;
use crate::thin_metadata::{BLOCKS, KINDS, SEAL};
use crate::virtqueue as ring;

/// One file of a corpus.
pub struct Seed {
    /// Whose corpus.
    pub target: &'static str,
    /// Its name in it.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// All seeds.
pub fn seeds() -> Vec<Seed> {
    let mut all = Vec::new();
    let mut add = |target, name: &str, bytes| all.push(Seed { target, name: format!("seed-{name}"), bytes });
    for (name, flags) in [
        ("512", 0),
        ("512-mended", FIX_CRCS | WITH_HINT),
        ("4096", BLOCKS_OF_4096),
        ("4096-mended", BLOCKS_OF_4096 | FIX_CRCS),
        ("backup", PIECE_MISSING),
        ("backup-mended", PIECE_MISSING | FIX_CRCS),
    ] {
        add("gpt", name, gpt_input(flags));
    }
    add("mbr", "primary", mbr_input(&[(63, 100), (200, 100)], &[]));
    add("mbr", "logical", mbr_input(&[(63, 100)], &[(1001, 50), (1101, 60), (1201, 70)]));
    add("partition", "mbr", [&[9, 100, 0], &mbr_sectors(&[(63, 100)], &[])[0].1[..]].concat());
    add("partition", "gpt", gpt_head_input());
    add("partition", "fat", fat_input());
    add("partition", "zero", vec![12, 1, 0]);
    for (name, text) in DM_TABLES {
        add("dm_table", name, text.as_bytes().to_vec());
    }
    for (name, flags) in [
        ("64", 0),
        ("32", blkif::BITS_32),
        ("persistent", blkif::PERSISTENT),
        ("32-persistent", blkif::BITS_32 | blkif::PERSISTENT),
    ] {
        add("blkif", name, blkif_input(flags));
    }
    for (name, text) in BLKIF_KEYS {
        add("blkif", name, [&[blkif::KEYS], text.as_bytes()].concat());
    }
    add("blktrace", "v7", blktrace_input(false));
    add("blktrace", "v8", blktrace_input(true));
    add("log_writes", "512", log_writes_input(512));
    add("log_writes", "4096", log_writes_input(4096));
    add("nbd", "simple", nbd_input(nbd::PAYLOADS, &[7]));
    add("nbd", "structured", nbd_input(nbd::PAYLOADS, &[3, 8, 9, 10, 6, 7]));
    add("nbd", "extended", nbd_input(nbd::PAYLOADS, &[8, 11, 10, 7]));
    add("nbd", "read-only", nbd_input(nbd::PAYLOADS | nbd::READ_ONLY, &[11, 10, 7]));
    add("nbd", "export-name", nbd_input(nbd::PAYLOADS, &[1]));
    add("nbd", "tls", nbd_input(nbd::PAYLOADS | nbd::TLS, &[3, 5, 8, 10, 7]));
    add("nbd", "payloads", nbd_input(0, &[8, 7]));
    for (name, procedure, values) in NFS_REPLIES {
        add("nfs3", name, nfs_input(nfs3::MEND_HEAD, *procedure, values));
    }
    add("nfs3", "as-it-is", nfs_input(0, 1, &[9, 1, 0, 0, 0, 0, 70]));
    for (name, flags, call, values) in NFS4_REPLIES {
        add("nfs4", name, nfs_input(nfs3::MEND_HEAD | flags, *call, values));
    }
    add("nfs4", "as-it-is", nfs_input(0, 5, &[9, 1, 0, 0, 0, 0, 70, 0, 1, 22, 70]));
    for (name, flags) in [("split", 0), ("packed", ring::PACKED)] {
        add("virtqueue", name, virtqueue_input(flags));
        add("virtqueue", &format!("{name}-marks"), virtqueue_input(flags | ring::MARKS));
        add("virtqueue", &format!("{name}-events"), virtqueue_input(flags | ring::EVENT_IDX));
        add("virtqueue", &format!("{name}-regions"), virtqueue_input(flags | ring::REGIONS));
    }
    add("virtqueue", "packed-odd", virtqueue_input(ring::PACKED | ring::ODD));
    add("virtqueue", "packed-marks-beyond", beyond_the_ring(virtqueue_input(ring::PACKED | ring::MARKS)));
    for (name, message) in vhost_messages() {
        add("vhost_user", name, message.encode(true));
    }
    for (name, text) in lvm2::TEXTS {
        add("lvm2_text", name, [&[1], text.as_bytes()].concat());
        add("lvm2_pv", name, lvm2::pv_input(lvm2::MEND_HEADERS | lvm2::MEND_TEXT, 1, text));
    }
    add("lvm2_pv", "as-it-is", lvm2::pv_input(0, 0, "vg {\n}\n"));
    for (version, name) in ["1.1", "1.2", "1.0"].into_iter().enumerate() {
        add("md_superblock", name, md_input(0, version, Level::Raid1));
        add(
            "md_superblock",
            &format!("{name}-mended"),
            md_input(FIX_CHECKSUM | FIX_PLACE, version, Level::Raid10),
        );
    }
    add("md_superblock", "0.90", md_old_input(0));
    add("md_superblock", "0.90-mended", md_old_input(FIX_CHECKSUM));
    add("md_bitmap", "188", md_bitmap_input(96_256, 256 << 10));
    add("md_bitmap", "9", md_bitmap_input(9, 512));
    for shift in [0, 3] {
        let list = [Region { start: 2048, sectors: 8 }, Region { start: 4096, sectors: 5000 }];
        let list = bad_blocks::encode(&list, shift, 1).expect("two ranges in 64 entries");
        let input = [&[shift][..], &20_000u32.to_le_bytes(), &list[..128]].concat();
        add("md_bad_blocks", &format!("shift-{shift}"), input);
    }
    add("dm_raid", "as-it-is", dm_raid_input(0, 0));
    add("dm_raid", "mended", dm_raid_input(1, 0));
    add("dm_raid", "reshape", dm_raid_input(1, 1));
    for (name, regions, known, bits) in [
        ("in-sync", 80, 80, [0xff; 10]),
        ("new", 80, u64::MAX, [0; 10]),
        ("in-pieces", 70, 60, [0b1011_1101; 10]),
    ] {
        add("mirror_log", name, mirror_log_input(regions, known, &bits));
    }
    add("exception_store", "1-sector", exception_store_input(1, 40));
    add("exception_store", "8-sectors", exception_store_input(8, 20));
    add("exception_store", "empty", exception_store_input(1, 0));
    for (name, flags, mappings) in [("empty", SEAL, 0), ("as-it-is", 0, 20), ("two-levels", SEAL, 253)] {
        add("thin_metadata", name, thin_input(flags, mappings));
    }
    for (name, mappings) in [("one-level", 120), ("two-levels", 253)] {
        let operations: Vec<_> = THIN_OPERATIONS.iter().flat_map(thin_operation).collect();
        let count = u8::try_from(THIN_OPERATIONS.len()).expect("few");
        add("thin_edit", name, [&[count][..], &operations, &thin_input(SEAL, mappings)].concat());
    }
    for (name, flags, version) in
        [("flags", SEAL, 1), ("bitmap", SEAL, 2), ("unclean", SEAL, 2 | caches::UNCLEAN), ("as-it-is", 0, 1)]
    {
        add("cache_metadata", name, caches::cache_input(flags, version));
    }
    add("writecache", "few", caches::writecache_input(12));
    add("writecache", "many", caches::writecache_input(300));
    all
}

const MD_SECTORS: u32 = 98_304;

fn md_input(flags: u8, version: usize, level: Level) -> Vec<u8> {
    let minor = Minor::ALL[version];
    let is_at_end = minor == Minor::V1_0;
    let superblock = v1::Superblock {
        minor,
        features: Features::BITMAP,
        set_uuid: Uuid([3; 16]),
        set_name: SetName::new("host:name").expect("a short name"),
        ctime: Time::new(1_700_000_000, 0),
        level,
        layout: if level == Level::Raid10 { 0x102 } else { 0 },
        size: 65_536,
        chunk_sectors: 128,
        raid_disks: 4,
        bitmap_offset: if is_at_end { -16 } else { 8 },
        reshape: Reshape::default(),
        data_offset: if is_at_end { 0 } else { 2048 },
        data_size: 96_256,
        super_offset: minor.sector(MD_SECTORS.into()).expect("a disk with room"),
        recovery_offset: 0,
        dev_number: 2,
        corrected_errors: 0,
        device_uuid: Uuid([7; 16]),
        devflags: 0,
        bblog_shift: 0,
        bblog_sectors: 8,
        bblog_offset: if is_at_end { -8 } else { 16 },
        utime: Time::new(1_700_000_001, 0),
        events: 17,
        resync_offset: IN_SYNC,
        logical_block_size: 0,
        roles: (0..4).map(Role::Active).collect(),
        reserved: [0; 32],
    };
    let version = u8::try_from(version).expect("one of four");
    [&[flags, version][..], &MD_SECTORS.to_le_bytes(), &superblock.encode()].concat()
}

/// A mirror of two with a superblock 0.90.
fn md_old_input(flags: u8) -> Vec<u8> {
    let mut bytes = vec![0; v0::SUPERBLOCK_BYTES];
    let words: [(usize, u32); 14] = [
        (0, 0xa92b_4efc),
        (2, 90),
        (5, 3),
        (7, 1),
        (8, 40_000),
        (10, 2),
        (33, 1),
        (39, 17),
        (128 + 4, 6),
        (160, 1),
        (160 + 3, 1),
        (160 + 4, 6),
        (992, 1),
        (992 + 3, 1),
    ];
    for (word, value) in words {
        bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
    v0::fix_checksum(&mut bytes);
    [&[flags, 3][..], &MD_SECTORS.to_le_bytes(), &bytes].concat()
}

fn md_bitmap_input(sync_size: u64, chunk_bytes: u32) -> Vec<u8> {
    let bitmap = BitmapSuperblock {
        version: 4,
        uuid: Uuid([3; 16]),
        events: 17,
        events_cleared: 16,
        sync_size,
        state: 0,
        chunk_bytes,
        daemon_sleep: 5,
        write_behind: 0,
        sectors_reserved: 8,
        nodes: 0,
        cluster_name: [0; 64],
        reserved: [0; 120],
    };
    [&64u16.to_le_bytes()[..], &bitmap.encode(), &[0x81, 0, 0xff]].concat()
}

/// A pool with so many mappings in device 1, and a snapshot of that.
/// Operations on a pool with the devices 1 and 2: which, on what device, from where, how many blocks.
const THIN_OPERATIONS: [(Operation, u8, u16, u16); 20] = [
    (Operation::Map, 1, 10, 30),
    (Operation::Create, 3, 0, 0),
    (Operation::Map, 3, 0, 300),
    (Operation::Commit, 0, 0, 0),
    (Operation::Snapshot, 4, 3, 0),
    (Operation::Map, 4, 100, 1),
    (Operation::Snapshot, 5, 4, 0),
    (Operation::Unmap, 3, 10, 200),
    (Operation::Hold, 0, 0, 0),
    (Operation::Map, 5, 90, 20),
    (Operation::Commit, 0, 0, 0),
    (Operation::LookUp, 5, 80, 50),
    (Operation::Delete, 1, 0, 0),
    (Operation::Delete, 3, 0, 0),
    (Operation::Unmap, 2, 0, 600),
    (Operation::Release, 0, 0, 0),
    (Operation::GrowData, 0, 0, 40_000),
    (Operation::Commit, 0, 0, 0),
    (Operation::Release, 0, 0, 0),
    (Operation::Delete, 4, 0, 0),
];

fn thin_operation((operation, device, first, blocks): &(Operation, u8, u16, u16)) -> Vec<u8> {
    [&[*operation as u8, *device][..], &first.to_le_bytes(), &blocks.to_le_bytes()].concat()
}

fn thin_input(flags: u8, mappings: u64) -> Vec<u8> {
    let details = DeviceDetails { snapshotted_time: 1, ..DeviceDetails::default() };
    let own = (0..mappings).map(|n| (2 * n, BlockTime { block: n, time: 0 })).collect();
    let device = |mappings| build::Device { details, mappings };
    let contents = Contents {
        data_block_sectors: 128,
        data_blocks: 1000,
        metadata_blocks: BLOCKS.into(),
        time: 1,
        transaction_id: 2,
        devices: [(1, device(Mappings::Own(own))), (2, device(Mappings::Of(1)))].into(),
    };
    let mut input = vec![flags];
    for piece in build(&contents).expect("it fits into 64 blocks") {
        let nr = u8::try_from(piece.offset / BLOCK_BYTES as u64).expect("one of 64");
        let block: &[u8; BLOCK_BYTES] = piece.bytes[..].try_into().expect("a block");
        let is_kind = |kind: &BlockKind| kind.verify(nr.into(), block).is_ok();
        let kind = KINDS.iter().position(is_kind).expect("it was just made");
        let kind = u8::try_from(kind).expect("one of four");
        let words = (0u16..).zip(block.as_chunks::<8>().0).filter(|(_, word)| **word != [0; 8]);
        let words: Vec<_> = words.take(255).collect();
        input.extend([nr, kind, u8::try_from(words.len()).expect("at most 255")]);
        words.into_iter().for_each(|(at, word)| input.extend([&at.to_le_bytes()[..], word].concat()));
    }
    input
}

/// The third of four legs.
/// A store with so many exceptions, of chunks with odd numbers that go down.
fn exception_store_input(chunk: u32, count: u64) -> Vec<u8> {
    let layout = snapshot::Layout::new(chunk).expect("a power of two");
    let mut bytes = Vec::new();
    let mut put = |at: u64, new: &[u8]| {
        let at = usize::try_from(at).expect("few chunks");
        bytes.resize(bytes.len().max(at + new.len()), 0);
        bytes[at..at + new.len()].copy_from_slice(new);
    };
    put(0, &Header { valid: true, layout }.encode());
    put(layout.area_chunk(1) * layout.chunk_bytes() - 1, &[0]);
    let mut next = layout.data_chunk(0);
    for n in 0..count {
        let (area, within) = (n / layout.exceptions_per_area(), n % layout.exceptions_per_area());
        let exception = Exception { old: 2 * (count - n) - 1, new: next };
        put(layout.area_chunk(area) * layout.chunk_bytes() + within * 16, &exception.encode());
        next = layout.data_chunk(next + 1);
    }
    // What lies between, the content of chunks, is zeros here.
    let end = u32::try_from(layout.chunk_bytes() * (next + 2)).expect("few chunks");
    bytes.truncate(12 << 10);
    [&[FIX_HEADER][..], &(chunk * 200).to_le_bytes(), &end.to_le_bytes(), &bytes].concat()
}

fn dm_raid_input(mend: u8, reshape: u8) -> Vec<u8> {
    let mut bytes = [0; dm_raid::SUPERBLOCK_BYTES];
    bytes[..4].copy_from_slice(b"DmRd");
    for (at, byte) in [(4, 1), (8, 4), (12, 2), (16, 9), (48, 10), (52, 2), (53, 1), (56, 128), (60, reshape)]
    {
        bytes[at] = byte;
    }
    bytes[32..48].fill(0xff);
    [&[mend][..], &bytes].concat()
}

fn mirror_log_input(regions: u16, known: u64, bits: &[u8]) -> Vec<u8> {
    let mut log = [&[0; 8][..], &known.to_le_bytes()].concat();
    log.resize(1024, 0);
    [&[mirror_log::FIX_HEADER][..], &regions.to_le_bytes(), &0u32.to_le_bytes(), &log, bits].concat()
}

const DM_TABLES: &[(&str, &str)] = &[
    ("linear", "0 1024 linear /dev/sdb,direct=off 8\n1024 8 zero\n1032 8 error\n"),
    ("striped", "# striped\n0 96 striped 3 16 a 0 b 10 null:10G 0\n"),
    (
        "stack",
        "a: 0 100 linear 8:16 2048\na: 100 100 zero\nb: 0 150 linear dm/a 50\nc: 0 8 linear /dev/mapper/b 0\n",
    ),
    ("quoted", "a\\ b: 0 8 linear /my\\ disks/\\#1\\\\ 0 # comment\n"),
    ("refused", "0 8 snapshot a b P 8\n"),
];

const GPT_BLOCKS: u16 = 2000;
const GPT_ENTRIES: usize = 4;

fn gpt_input(flags: u8) -> Vec<u8> {
    let block_size: usize = if flags & BLOCKS_OF_4096 != 0 { 4096 } else { 512 };
    let sectors_per_block = u64::try_from(block_size / 512).expect("at most 8");
    let partition = |block: u64, blocks: u64, name: &str| {
        Some(GptPartition {
            start_sector: block * sectors_per_block,
            sectors: blocks * sectors_per_block,
            type_guid: Guid::LINUX_LVM,
            guid: Guid([7; 16]),
            name: name.into(),
            attributes: 4,
        })
    };
    let layout = Layout {
        disk_bytes: u64::from(GPT_BLOCKS) * sectors_per_block * 512,
        logical_block_size: u32::try_from(block_size).expect("at most 4096"),
        disk_guid: Guid([3; 16]),
        partitions: vec![partition(64, 100, "one"), partition(164, 1, "two"), partition(1000, 900, "three")],
    };
    let pieces = gpt::build(&layout).expect("a layout that fits");
    let (head, tail) = (&pieces[1].bytes, &pieces[2].bytes);
    let entries = &head[block_size..block_size + GPT_ENTRIES * 128];
    let mut input = vec![flags];
    input.extend(GPT_BLOCKS.to_le_bytes());
    input.push(3);
    for (header, entries_block) in
        [(&head[..block_size], 2), (&tail[tail.len() - block_size..], GPT_BLOCKS - 2)]
    {
        // The array of 128 entries shrinks to 4, which are one block before the backup header.
        let mut header = header.to_vec();
        header[72..80].copy_from_slice(&u64::from(entries_block).to_le_bytes());
        header[80..84].copy_from_slice(&[4, 0, 0, 0]);
        fix_crcs(&mut header, Some(entries));
        input.extend(&header[..GPT_HEADER_BYTES]);
    }
    input.extend(entries);
    input.extend(entries);
    input
}

fn mbr_sectors(primary: &[(u64, u64)], logical: &[(u64, u64)]) -> Vec<(u64, Vec<u8>)> {
    let partitions = |ranges: &[(u64, u64)]| -> Vec<_> {
        let partition =
            |(start_sector, sectors)| MbrPartition { start_sector, sectors, type_id: 0x83, bootable: true };
        ranges.iter().copied().map(partition).collect()
    };
    let logical = partitions(logical);
    let layout = mbr::Layout {
        disk_bytes: 2000 * 512,
        logical_block_size: 512,
        signature: 0x0bad_cafe,
        primary: partitions(primary),
        extended: (!logical.is_empty()).then_some(ExtendedPartition {
            start_sector: 1000,
            sectors: 900,
            logical,
        }),
    };
    let pieces = mbr::build(&layout).expect("a layout that fits");
    pieces.into_iter().map(|piece| (piece.offset / 512, piece.bytes)).collect()
}

fn mbr_input(primary: &[(u64, u64)], logical: &[(u64, u64)]) -> Vec<u8> {
    let mut input = vec![0];
    input.extend(2000u16.to_le_bytes());
    for (sector, bytes) in mbr_sectors(primary, logical) {
        match u16::try_from(sector).expect("a disk of 2000 sectors") {
            0 => input.extend(&bytes[440..444]),
            sector => input.extend(sector.to_le_bytes()),
        }
        input.extend(&bytes[446..510]);
    }
    input
}

/// A GPT disk whose backup is missing, as bytes.
fn gpt_head_input() -> Vec<u8> {
    let input = gpt_input(0);
    let (header, entries) = (&input[4..4 + GPT_HEADER_BYTES], &input[4 + 2 * GPT_HEADER_BYTES..]);
    let mut disk = vec![0; 3 * 512];
    disk[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[512..512 + GPT_HEADER_BYTES].copy_from_slice(header);
    disk[1024..].copy_from_slice(&entries[..512]);
    [&[9, 0xe7, 0x03], &disk[..]].concat()
}

fn fat_input() -> Vec<u8> {
    let mut input = vec![0; 3 + 512];
    input[3..6].copy_from_slice(&[0xeb, 0x3c, 0x90]);
    input[14..25].copy_from_slice(&[0x00, 0x02, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8]);
    input[513..].copy_from_slice(&[0x55, 0xaa]);
    input
}

fn blktrace_input(v8: bool) -> Vec<u8> {
    let (disk, io) = (Device::new(8, 0), Category::WRITE | Category::SYNC | Category::FS);
    let remap = Remap { from: Device::new(253, 0), to: disk, sector_from: 0 };
    let records = [
        Record::timestamp(1_700_000_000, 0),
        Record::process(42, "fio"),
        Record { pid: 42, sequence: 1, ..Record::remap(io, 4096, 2048, remap) },
        Record { pid: 42, sequence: 2, ..Record::new(Act::Queue, io, disk, 2048, 4096) },
        Record { pid: 42, cgroup: Some(5), ..Record::new(Act::GetRequest, io, disk, 2048, 4096) },
        Record::split(io, disk, 0, 8192, 8),
        Record::unplug(disk, 2),
        Record {
            payload: vec![0x12, 0, 0, 1, 0, 0].into(),
            ..Record::new(Act::Issue, Category::PC, disk, 0, 252)
        },
        Record { error: 5, time_ns: 1_000_000_007, ..Record::new(Act::Complete, io, disk, 2048, 4096) },
        Record::message(disk, "a message"),
    ];
    let mut out = Vec::new();
    for record in records {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        out.extend(if v8 { as_v8(&bytes) } else { bytes });
    }
    out
}

/// The same record as newer kernels write it.
fn as_v8(v7: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 9] =
        [&[8], &v7[1..28], &v7[32..36], &v7[28..32], &[0; 4], &v7[36..44], &v7[44..48], &[0; 12], &v7[48..]];
    parts.concat()
}

fn log_writes_input(sectorsize: u32) -> Vec<u8> {
    let mut writer = Writer::new(sectorsize).expect("a sectorsize");
    // With large blocks, an input of a few KiB has room for two entries.
    let mut placed =
        vec![writer.entry(Flags::DISCARD, 1600, 1 << 20), writer.entry(Flags::FLUSH | Flags::FUA, 8, 8)];
    if sectorsize == 512 {
        placed.extend([
            writer.entry(Flags::FLUSH, 0, 0),
            writer.mark("here"),
            writer.entry(Flags::METADATA, 80, 3),
        ]);
    }
    let placed: Vec<_> = placed.into_iter().map(|placed| placed.expect("ranges of whole blocks")).collect();
    // What the blocks hold behind their last field is zero, and the file ends with the last entry's fields; a reader
    // finds its data in the zeros that are appended.
    let last = &placed[placed.len() - 1];
    let mut log = vec![0; usize::try_from(last.offset).expect("a small log") + 32];
    for placed in &placed {
        let at = usize::try_from(placed.offset).expect("a small log");
        let end = log.len().min(at + placed.block.len());
        log[at..end].copy_from_slice(&placed.block[..end - at]);
    }
    let superblock = writer.superblock().encode();
    log[..superblock.len()].copy_from_slice(&superblock);
    [&[16, 0], &log[..]].concat()
}

/// Answers of an NFS server: to which call (see the target), and the units of the result.
const NFS_REPLIES: &[(&str, u8, &[u32])] = &[
    ("port", 0, &[2049]),
    ("mount", 1, &[0, 8, 1, 2, 1, 1]),
    ("attributes", 2, &[0, 1, 420, 1, 0, 0, 0, 4096, 0, 4096, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0]),
    ("lookup", 3, &[0, 4, 7, 0]),
    ("access", 4, &[0, 0, 13]),
    ("fsinfo", 5, &[0, 0, 1 << 20, 1 << 20, 512, 1 << 20, 1 << 20, 512, 4096, 1, 0, 0, 1, 15]),
    ("read", 6, &[0, 0, 512, 1, 512]),
    ("write", 7, &[0, 1, 0, 4096, 0, 0, 0, 0, 0, 512, 2, 17, 18]),
    ("commit", 8, &[0, 0, 0, 17, 18]),
    // ::.8.1 and a/b
    ("address", 9, &[6, 0x3a3a_2e38, 0x2e31_0000]),
    ("link", 10, &[0, 0, 3, 0x612f_6200]),
    ("error", 7, &[28, 0, 0]),
];

/// The same of version 4: flags, to which call, and the units of the result.
const NFS4_REPLIES: &[(&str, u8, u8, &[u32])] = &[
    ("root", 0, 0, &[0, 0, 3, 24, 0, 10, 0, 4, 7, 9, 0, 1, 0x16, 16, 2, 0, 0, 4096]),
    (
        "file",
        nfs4::HAS_FOLDER | nfs4::HAS_NAME,
        0,
        &[0, 0, 4, 22, 0, 15, 0, 10, 0, 4, 7, 9, 0, 2, 0xc000_0016, 0, 32, 1, 0, 0, 4096, 0, 8192, 0, 8192],
    ),
    // A tag, and a/b
    ("link", 0, 1, &[0, 1, 0x7400_0000, 2, 22, 0, 27, 0, 3, 0x612f_6200]),
    ("access", 0, 2, &[0, 0, 2, 22, 0, 3, 0, 31, 13]),
    ("read", 0, 3, &[0, 0, 2, 22, 0, 25, 0, 1, 512]),
    ("write", 0, 4, &[0, 0, 2, 22, 0, 38, 0, 512, 2, 17, 18]),
    (
        "writes",
        0,
        4 + 2 * nfs4::CALLS,
        &[0, 0, 4, 22, 0, 38, 0, 512, 2, 17, 18, 38, 0, 512, 0, 17, 18, 38, 0, 512, 1, 17, 18],
    ),
    ("stopped", 0, 4 + 2 * nfs4::CALLS, &[28, 0, 3, 22, 0, 38, 0, 512, 2, 17, 18, 38, 28]),
    ("commit", 0, 5, &[0, 0, 2, 22, 0, 5, 0, 17, 18]),
    ("error", 0, 4, &[70, 0, 1, 22, 70]),
];

fn nfs_input(flags: u8, call: u8, message: &[u32]) -> Vec<u8> {
    [flags, call].into_iter().chain(message.iter().flat_map(|value| value.to_be_bytes())).collect()
}

/// A session that begins with these options, makes one request of each kind, and is still there when the server goes down.
fn nbd_input(flags_of_session: u8, options: &[u8]) -> Vec<u8> {
    let mut out = vec![flags_of_session, nbd::BYTES, 4, 0, 0, 0, 3];
    for option in options {
        let data: &[u8] = match option {
            6 | 7 => b"\0\0\0\x01b\0\x02\0\0\0\x03",
            9 => b"\0\0\0\0\0\0\0\0",
            10 => b"\0\0\0\x01b\0\0\0\x01\0\0\0\x0fbase:allocation",
            _ => b"",
        };
        out.extend([nbd::OPTION, *option, u8::try_from(data.len()).expect("short")]);
        out.extend(data);
    }
    // Flags, command, offset, its scale, length, its scale.
    let extended = options.contains(&11);
    let payload = if extended { 32 } else { 0 };
    let requests = [
        (0u8, 0u8, 1u16, 9u8, 8u16, 9u8),
        (payload, 1, 3, 9, 4, 3),
        (0, 3, 0, 0, 0, 0),
        (0, 4, 0, 0, 1, 30),
        (0, 5, 0, 0, 1, 30),
        (1 | 2 | 16, 6, 1, 12, 1, 20),
        (8, 7, 0, 0, 1, 30),
        (0, 0, 0xffff, 40, 1, 9),
        (0, 77, 0, 0, 0, 0),
    ];
    for (flags, command, offset, scale, len, len_scale) in requests {
        out.extend([nbd::REQUEST, flags, command]);
        out.extend(offset.to_le_bytes());
        out.push(scale);
        out.extend(len.to_le_bytes());
        out.push(len_scale);
        if command == 1 && flags_of_session & nbd::PAYLOADS == 0 {
            out.extend([nbd::BYTES, 32]);
            out.extend([0x25; 32]);
        }
    }
    if extended {
        out.extend([nbd::REQUEST, 32, 7, 0, 0, 0, 12, 0, 0, nbd::BYTES, 12]);
        out.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    }
    out.push(nbd::SHUTDOWN);
    out.extend([nbd::REQUEST, 0, 0, 1, 0, 9, 8, 0, 9]);
    out
}

/// Keys that guests publish: with one page, as Linux writes them with eight, and of two queues.
const BLKIF_KEYS: [(&str, &str); 3] = [
    ("keys-page", "ring-ref=8\nevent-channel=4\nprotocol=x86_64-abi\nfeature-persistent=1\n"),
    (
        "keys-pages",
        "ring-page-order=1\nring-ref0=8\nring-ref1=9\nevent-channel=4\nprotocol=x86_32-abi\nnum-ring-pages=2\n",
    ),
    (
        "keys-queues",
        "multi-queue-num-queues=2\nqueue-0/ring-ref=8\nqueue-0/event-channel=4\nqueue-1/ring-ref=9\n\
         queue-1/event-channel=5\n",
    ),
];

/// A guest that reads, writes, discards, flushes and asks for a barrier, each by itself and all at once; and indirectly.
fn blkif_input(flags: u8) -> Vec<u8> {
    // The whole of the first page.
    let page = [0, 0x70];
    let request = |operation: u8, id: u8, segments: u8| {
        let head = [blkif::REQUEST, operation, segments, id, id, 0];
        [&head[..], &page.repeat(segments.into())].concat()
    };
    let look = vec![blkif::RING, 0];
    let list = [&[blkif::LIST, 3][..], &page.repeat(3)].concat();
    let indirect = vec![blkif::REQUEST, 6, 3 << 1, 9, 8, 0];
    let mut input = vec![flags];
    for operation in [0, 1, 2, 3, 5] {
        input.extend(request(operation, operation, u8::from(operation != 5)));
        input.extend(&look);
    }
    (0..6).for_each(|n| input.extend(request(n % 4, 20 + n, 2)));
    input.extend([list, indirect, look].concat());
    input
}

/// A ring of eight descriptors with a read in three of them, and a write in an indirect table.
fn virtqueue_input(flags: u8) -> Vec<u8> {
    let is_packed = flags & ring::PACKED != 0;
    let mut memory = vec![0; ring::CONTENT];
    let at = |offset: u64| ring::MEMORY + offset;
    let mut put = |place: usize, bytes: &[u8]| memory[place..place + bytes.len()].copy_from_slice(bytes);
    // Header, data, status; the table of the second lies behind the marks.
    let read = [(at(0x1000), 16, 1), (at(0x2000), 512, 3), (at(0x1010), 1, 2)];
    let write = [(at(0x1020), 16, 1), (at(0x2200), 512, 1), (at(0x1030), 1, 2)];
    let table = 0xb00;
    for (i, (address, len, flags)) in (0_u16..).zip(write) {
        let place = table + 16 * usize::from(i);
        if is_packed {
            put(place, &PackedDescriptor { address, len, id: 0, flags: flags & 2 }.encode());
        } else {
            put(place, &Descriptor { address, len, flags, next: i + 1 }.encode());
        }
    }
    for (i, (address, len, flags)) in (0_u16..).zip(read).chain([(3, (at(table as u64), 48, 4))]) {
        let place = 16 * usize::from(i);
        if is_packed {
            put(place, &PackedDescriptor { address, len, id: i / 3, flags: flags | 1 << 7 }.encode());
        } else {
            put(place, &Descriptor { address, len, flags, next: i + 1 }.encode());
        }
    }
    if !is_packed {
        // Index 2; chains 0 and 3.
        put(ring::AVAILABLE, &[0, 0, 2, 0, 0, 0, 3, 0]);
    }
    if flags & ring::MARKS != 0 {
        marks(is_packed).iter().for_each(|(place, bytes)| put(ring::MARKS_AT + place, bytes));
    }
    let steps = [
        ring::RESUME,
        ring::RESUME,
        ring::NEXT,
        ring::NEXT,
        ring::COMPLETE,
        ring::PUBLISH,
        ring::WANT_CALLS,
        ring::COMPLETE,
    ];
    let mut input = vec![flags, 3];
    // A packed ring begins with both wrap counters set.
    input.extend(if is_packed { 0x8000_8000_u32 } else { 0 }.to_le_bytes());
    input.push(u8::try_from(steps.len()).expect("a few"));
    // Of two that are in flight the second is answered first.
    steps.iter().for_each(|step| input.extend([*step, 1, 1, 0]));
    input.extend(memory);
    input
}

/// The input with 21 marks for its eight descriptors, which say that descriptor 20 is used next.
fn beyond_the_ring(mut input: Vec<u8>) -> Vec<u8> {
    const MARKS: u8 = 21;
    input[1] |= MARKS << 3;
    let marks = input.len() - ring::CONTENT + ring::MARKS_AT;
    input[marks + inflight::ENTRIES] = MARKS;
    input[marks + inflight::packed::USED_INDEX] = MARKS - 1;
    input[marks + inflight::packed::OLD_USED_INDEX] = MARKS - 1;
    for number in 8..MARKS {
        // All of those are free.
        input[marks + inflight::entry(number.into(), true) + inflight::packed::NEXT] = number + 1;
    }
    input
}

/// Marks for eight descriptors, of which the first is in flight.
fn marks(is_packed: bool) -> Vec<(usize, Vec<u8>)> {
    let mut all = vec![(inflight::VERSION, vec![1, 0, 8, 0])];
    if !is_packed {
        all.push((inflight::entry(0, false) + inflight::split::INFLIGHT, vec![1]));
        return all;
    }
    use inflight::packed;
    all.push((packed::FREE_HEAD, vec![1, 0, 1, 0]));
    all.push((packed::USED_WRAP, vec![1, 1]));
    for number in 0..8 {
        all.push((inflight::entry(number, true) + packed::NEXT, (number + 1).to_le_bytes().to_vec()));
    }
    let first = inflight::entry(0, true);
    all.push((first + packed::INFLIGHT, vec![1]));
    all.push((first + packed::COUNT, vec![1, 0]));
    let address = (ring::MEMORY + 0xb00).to_le_bytes();
    let indirect = [&[5, 0, 4, 0, 48, 0, 0, 0][..], &address].concat();
    all.push((first + packed::DESCRIPTOR, indirect));
    all
}

fn vhost_messages() -> Vec<(&'static str, Message)> {
    let region = GuestRegion { guest: 0, size: 4096, user: 1 << 40, offset: 0 };
    let area = InflightArea { size: 4096, offset: 0, queues: 2, queue_size: 128 };
    let address = VringAddr { index: 1, flags: 0, descriptors: 1, used: 2, available: 3, log: 0 };
    vec![
        ("table", Message::SetMemTable(vec![region, region])),
        ("region", Message::AddMemReg(region)),
        ("address", Message::SetVringAddr(address)),
        ("kick", Message::SetVringKick(VringFile { index: 1, has_file: true })),
        ("config", Message::SetConfig(ConfigPart { offset: 32, flags: 0, bytes: vec![1] })),
        ("inflight", Message::SetInflightFd(area)),
        ("features", Message::SetFeatures(1 << 32)),
        ("base", Message::GetVringBase(VringState { index: 0, num: 0 })),
    ]
}
