//! The layout against the bytes that the format's description gives, and a replay against writes made directly.

use super::*;
use crate::source::Sparse;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Write { block: u64, blocks: u64, fill: u8, flags: Flags },
    Discard { block: u64, blocks: u64 },
    Flush,
    Mark(String),
}

const DEVICE_BLOCKS: u64 = 16;

fn op() -> impl Strategy<Value = Op> {
    let range = (0..DEVICE_BLOCKS).prop_flat_map(|block| (Just(block), 1..=DEVICE_BLOCKS - block));
    let flags = prop_oneof![Just(Flags(0)), Just(Flags::FUA), Just(Flags::METADATA | Flags::FLUSH)];
    prop_oneof![
        4 => (range.clone(), any::<u8>(), flags)
            .prop_map(|((block, blocks), fill, flags)| Op::Write { block, blocks, fill, flags }),
        1 => range.prop_map(|(block, blocks)| Op::Discard { block, blocks }),
        1 => Just(Op::Flush),
        1 => "[a-c]{1,3}".prop_map(Op::Mark),
    ]
}

/// Logs `ops`, and applies them to a plain array, of which it returns the state after each op.
fn run(ops: &[Op], sectorsize: u32) -> (Sparse, Vec<Vec<u8>>) {
    let unit = u64::from(sectorsize);
    let (mut writer, mut pieces) = (Writer::new(sectorsize).unwrap(), Vec::new());
    let mut device = vec![0u8; usize::try_from(DEVICE_BLOCKS * unit).unwrap()];
    let mut states = vec![device.clone()];
    for op in ops {
        let sectors = |blocks: u64| blocks * (unit / SECTOR_BYTES);
        let bytes = |block: u64, blocks: u64| {
            let at = |block: u64| usize::try_from(block * unit).unwrap();
            at(block)..at(block + blocks)
        };
        let placed = match op {
            Op::Write { block, blocks, fill, flags } => {
                device[bytes(*block, *blocks)].fill(*fill);
                let placed = writer.entry(*flags, sectors(*block), sectors(*blocks)).unwrap();
                let data = vec![*fill; usize::try_from(placed.data_bytes).unwrap()];
                pieces.push(crate::Piece { offset: placed.data_offset, bytes: data });
                placed
            }
            Op::Discard { block, blocks } => {
                device[bytes(*block, *blocks)].fill(0);
                writer.entry(Flags::DISCARD, sectors(*block), sectors(*blocks)).unwrap()
            }
            Op::Flush => writer.entry(Flags::FLUSH, 0, 0).unwrap(),
            Op::Mark(text) => writer.mark(text).unwrap(),
        };
        pieces.push(crate::Piece { offset: placed.offset, bytes: placed.block });
        states.push(device.clone());
    }
    pieces.push(crate::Piece { offset: 0, bytes: writer.superblock().encode() });
    (Sparse::new(writer.end(), pieces), states)
}

fn replayed(log: &Log<'_>, until: Until<'_>) -> (Vec<u8>, Replayed) {
    let bytes = DEVICE_BLOCKS * u64::from(log.superblock().sectorsize);
    let mut device = vec![0u8; usize::try_from(bytes).unwrap()];
    let done = replay(log, until, &mut device).unwrap();
    (device, done)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_replay_up_to_any_entry_flush_or_mark_is_the_device_as_it_was_then(
        ops in proptest::collection::vec(op(), 0..12),
        sectorsize in prop_oneof![Just(512u32), Just(4096)],
    ) {
        let (source, states) = run(&ops, sectorsize);
        let log = Log::open(&source).unwrap();
        prop_assert_eq!(log.entries().count(), ops.len());
        let mut flushes = 0;
        for (i, op) in ops.iter().enumerate() {
            let n = u64::try_from(i + 1).unwrap();
            let (device, done) = replayed(&log, Until::Entries(n));
            prop_assert_eq!(&device, &states[i + 1], "after {} entries", n);
            prop_assert!(done.reached && done.entries == n);
            let flush = match op {
                Op::Flush => true,
                Op::Write { flags, .. } => flags.0 & 3 != 0,
                _ => false,
            };
            if flush {
                flushes += 1;
                let (device, done) = replayed(&log, Until::Flush(flushes));
                prop_assert_eq!(&device, &states[i + 1], "after flush {}", flushes);
                prop_assert!(done.reached && done.flushes == flushes);
            }
            if let Op::Mark(text) = op {
                let first = ops.iter().position(|op| matches!(op, Op::Mark(t) if t == text)).unwrap();
                prop_assert_eq!(&replayed(&log, Until::Mark(text)).0, &states[first + 1]);
            }
        }
        let (device, done) = replayed(&log, Until::End);
        prop_assert_eq!(&device, states.last().unwrap());
        prop_assert!(done.reached);
        prop_assert!(!replayed(&log, Until::Mark("no such mark")).1.reached);
    }
}

#[test]
fn sectors_of_an_entry_count_the_logs_own_blocks_and_the_data_follows_in_the_next_one() {
    let mut writer = Writer::new(4096).unwrap();
    let placed = writer.entry(Flags::FUA, 80, 16).unwrap();
    assert_eq!((placed.offset, placed.data_offset, placed.data_bytes), (4096, 8192, 8192));
    assert_eq!(placed.block.len(), 4096);
    assert_eq!(
        placed.block[..25],
        [10, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    let discard = writer.entry(Flags::DISCARD, 0, 800).unwrap();
    assert_eq!((discard.offset, discard.data_bytes, discard.block[8]), (16384, 0, 100));
    let flush = writer.entry(Flags::FLUSH, 0, 0).unwrap();
    assert_eq!((flush.offset, flush.data_bytes), (20480, 0));
    let mark = writer.mark("here").unwrap();
    assert_eq!((mark.offset, mark.data_bytes), (24576, 0));
    assert_eq!(mark.block[16..36], [8, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, b'h', b'e', b'r', b'e']);
    let superblock = writer.superblock().encode();
    assert_eq!(superblock[..8], [0x72, 0x68, 0x73, 0x77, 0x66, 0x73, 0x6a, 0]);
    assert_eq!(superblock[8..28], [1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]);
}

#[test]
fn what_is_not_a_log_or_was_cut_is_an_error_that_names_the_field() {
    let (source, _) = run(&[Op::Write { block: 1, blocks: 2, fill: 7, flags: Flags(0) }, Op::Flush], 512);
    let mut whole = vec![0; usize::try_from(source.size()).unwrap()];
    source.read_at(0, &mut whole).unwrap();
    let fails = |bytes: &Vec<u8>| match Log::open(bytes) {
        Err(error) => error.to_string(),
        Ok(log) => log.entries().find_map(Result::err).expect("a bad entry").to_string(),
    };
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    assert!(fails(&with(0, 0)).contains("magic is 0x6a736677736800, expected 0x6a736677736872"));
    assert!(fails(&with(8, 2)).contains("version is 2, expected 1"));
    assert!(fails(&with(25, 3)).contains("sectorsize is 768"));
    assert!(fails(&with(16, 99)).contains("number of entries is 99, expected at most 4"));
    assert!(fails(&with(512 + 15, 0x80)).contains("nr_sectors is 9223372036854775810, expected at most 3"));
    assert!(fails(&with(512 + 7, 0x80)).contains("dm-log-writes entry at 512: sector is"));
    let mut mark = with(2048 + 16, 8);
    mark[2048 + 25] = 2;
    assert!(fails(&mark).contains("data_len of a mark is 512, expected at most 480"));
    assert!(fails(&whole[..2047].to_vec()).contains("nr_sectors is 2, expected at most 1"));
    assert!(fails(&whole[..1024].to_vec()).contains("number of entries is 2, expected at most 1"));
    assert!(fails(&whole[..20].to_vec()).contains("cannot be read"));
}

#[test]
fn a_write_that_the_device_refuses_names_the_entry() {
    let (source, _) = run(&[Op::Flush, Op::Write { block: 15, blocks: 1, fill: 7, flags: Flags(0) }], 512);
    let mut small = vec![0; 512];
    let error = replay(&Log::open(&source).unwrap(), Until::End, &mut small).unwrap_err();
    assert_eq!(error.to_string(), "entry 1 of the log, 512 bytes at 7680: the range lies outside the device");
}

#[test]
fn a_range_that_is_not_in_whole_blocks_of_the_log_is_refused() {
    let mut writer = Writer::new(4096).unwrap();
    let error = writer.entry(Flags(0), 8, 9).unwrap_err().to_string();
    assert!(error.ends_with("nr_sectors is 9, expected a multiple of 8 (512-byte sectors)"), "{error}");
    assert!(writer.mark(&"x".repeat(4065)).is_err());
    assert!(writer.mark(&"x".repeat(4064)).is_ok());
    assert_eq!(Flags(0x23).to_string(), "FLUSH|FUA|0x20");
}
