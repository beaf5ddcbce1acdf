//! What a log promises, checked against a plain list of what was written: at each flush and FUA entry a replay holds,
//! for every sector, what was promised or something written later; and at the end exactly what was written last.

use super::*;
use blockwork_format::log_writes::{Log, Replayed, Until, replay};
use blockwork_memory::Buffer;
use proptest::prelude::*;

const SECTORS: u64 = 24;
const DISK: LeafId = LeafId(7);

#[derive(Clone, Debug)]
enum Step {
    Write {
        sectors: Range<u64>,
        fua: bool,
    },
    Zero {
        sectors: Range<u64>,
        fua: bool,
    },
    FlushStarts,
    /// Of the flushes that run, the one with this number, counted around.
    FlushEnds(usize),
    Mark,
}

fn range() -> impl Strategy<Value = Range<u64>> {
    (0..SECTORS).prop_flat_map(|start| (Just(start), start + 1..=SECTORS)).prop_map(|(start, end)| start..end)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), prop::bool::weighted(0.2)).prop_map(|(sectors, fua)| Step::Write { sectors, fua }),
        1 => (range(), prop::bool::weighted(0.2)).prop_map(|(sectors, fua)| Step::Zero { sectors, fua }),
        2 => Just(Step::FlushStarts),
        2 => (0..4usize).prop_map(Step::FlushEnds),
        1 => Just(Step::Mark),
    ]
}

fn segment(value: u8, sectors: u64) -> Segment {
    let len = Sectors(sectors).byte_len();
    let segment = Segment::new(Buffer::new(len), 0, len);
    segment.fill(value);
    segment
}

/// For each sector, what was written there, in order: the number of the write, and its byte.
type History = Vec<Vec<(usize, u8)>>;

/// What was promised after an entry FLUSH or FUA: how many writes each sector had had that must have survived, and how
/// many writes there were in all.
struct Promise {
    kept: Vec<usize>,
    all: Vec<usize>,
}

fn lengths(history: &History) -> Vec<usize> {
    history.iter().map(Vec::len).collect()
}

/// Does `steps` to a log whose memory holds `memory_max` bytes; returns its file, what was written, what was promised.
fn run(steps: &[Step], memory_max: u64, path: &Path) -> (History, Vec<Promise>) {
    let log = LeafLog::create(open(path).unwrap(), path.to_owned(), Sectors(SECTORS), memory_max).unwrap();
    let tap = LogWrites { leaves: HashMap::from([(DISK, Mutex::new(log))]) };
    let mut history: History = vec![vec![(0, 0)]; SECTORS as usize];
    let mut promises = Vec::new();
    // What no power cut may take back.
    let mut kept = vec![1; SECTORS as usize];
    let mut flushes: Vec<(u64, Vec<usize>)> = Vec::new();
    for (number, step) in (1usize..).zip(steps) {
        match step {
            Step::Write { sectors, fua } | Step::Zero { sectors, fua } => {
                let zero = matches!(step, Step::Zero { .. });
                let value = if zero { 0 } else { (number % 255) as u8 + 1 };
                let nr = sectors.end - sectors.start;
                let flags = if *fua { Flags::FUA } else { Flags::NONE };
                let data = [segment(value, nr)];
                let (op, data) = if zero { (Op::WriteZeroes, &data[..0]) } else { (Op::Write, &data[..]) };
                for sector in sectors.clone() {
                    history[sector as usize].push((number, value));
                }
                tap.altered(DISK, op, flags, Sector(sectors.start), Sectors(nr), data);
                if *fua {
                    for sector in sectors.clone() {
                        kept[sector as usize] = history[sector as usize].len();
                    }
                    promises.push(Promise { kept: kept.clone(), all: lengths(&history) });
                }
            }
            Step::FlushStarts => flushes.push((tap.flush_started(DISK), lengths(&history))),
            Step::FlushEnds(which) => {
                if flushes.is_empty() {
                    continue;
                }
                let (ticket, covered) = flushes.remove(which % flushes.len());
                tap.flushed(DISK, ticket);
                kept = kept.iter().zip(&covered).map(|(a, b)| *a.max(b)).collect();
                promises.push(Promise { kept: kept.clone(), all: lengths(&history) });
            }
            Step::Mark => tap.mark("here"),
        }
        // What a server that is killed now leaves behind has all that was promised (invariant 2).
        let bytes = std::fs::read(path).unwrap();
        let flushes = Until::Flush(promises.len() as u64);
        let mut disk = vec![0u8; Sectors(SECTORS).byte_len()];
        assert!(replay(&Log::open(&bytes).unwrap(), flushes, &mut disk).unwrap().reached);
    }
    tap.close().unwrap();
    (history, promises)
}

fn check(steps: &[Step], memory_max: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let (history, promises) = run(steps, memory_max, &path);
    let bytes = std::fs::read(&path).unwrap();
    let log = Log::open(&bytes).unwrap();
    let replayed = |until| {
        let mut disk = vec![0u8; Sectors(SECTORS).byte_len()];
        let done = replay(&log, until, &mut disk).unwrap();
        assert!(done.reached, "{until:?} is not in the log");
        (done, disk)
    };
    for (n, promise) in (1u64..).zip(&promises) {
        let (_, disk) = replayed(Until::Flush(n));
        for (sector, found) in disk.chunks(512).enumerate() {
            let allowed = &history[sector][promise.kept[sector] - 1..promise.all[sector]];
            let whole = found.iter().all(|byte| *byte == found[0]);
            assert!(whole, "promise {n}, sector {sector} is torn");
            let known = allowed.iter().any(|(_, value)| *value == found[0]);
            assert!(known, "promise {n}, sector {sector}: {} is none of {allowed:?}", found[0]);
        }
    }
    let (done, disk) = replayed(Until::End);
    assert_eq!(done.flushes, promises.len() as u64);
    for (sector, found) in disk.chunks(512).enumerate() {
        let (number, value) = history[sector].last().unwrap();
        assert!(found.iter().all(|byte| byte == value), "sector {sector}: write {number} is not the last");
    }
    let last = log.entries().last().unwrap().unwrap();
    assert_eq!(last.mark.as_deref(), Some(END_MARK));
    assert_eq!(replayed(Until::Mark(END_MARK)).0, Replayed { reached: true, ..done });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_replay_to_any_promise_holds_what_was_promised(
        steps in prop::collection::vec(step(), 0..40),
        memory_max in prop::sample::select(vec![0, 8 * 512, 1 << 20]),
    ) {
        check(&steps, memory_max);
    }
}

#[test]
fn a_flush_that_overtakes_another_logs_the_writes_of_both_in_order() {
    let write = |n| Step::Write { sectors: n..n + 4, fua: false };
    let starts = || Step::FlushStarts;
    check(&[write(0), starts(), write(2), starts(), Step::FlushEnds(1), Step::FlushEnds(0)], 1 << 20);
}

#[test]
fn a_fua_write_over_a_remembered_one_stays_the_newest() {
    let write = |n, fua| Step::Write { sectors: n..n + 4, fua };
    check(&[write(0, false), write(2, true), Step::FlushStarts, Step::FlushEnds(0)], 1 << 20);
}

#[test]
fn a_fua_write_that_overlaps_nothing_goes_ahead_of_what_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let steps = [
        Step::Write { sectors: 0..4, fua: false },
        Step::Write { sectors: 4..5, fua: true },
        Step::FlushStarts,
    ];
    run(&steps, 1 << 20, &path);
    let bytes = std::fs::read(&path).unwrap();
    let log = Log::open(&bytes).unwrap();
    let sectors: Vec<_> = log.entries().map(|entry| entry.unwrap().entry.sector).collect();
    assert_eq!(sectors, [4, 0, 0]);
}

#[test]
fn a_discard_has_no_data_and_a_long_write_of_zeros_is_several_entries_and_a_hole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let size = Sectors(1 << 30);
    let logs = LogWrites::create(&path, &[(DISK, "a disk".to_owned(), size)]).unwrap();
    logs.altered(DISK, Op::Discard, Flags::NONE, Sector(0), size, &[]);
    let zeros = Sectors(5 * ZEROES_ENTRY_BYTES_MAX / 2 / 512);
    logs.altered(DISK, Op::WriteZeroes, Flags::FUA, Sector(8), zeros, &[]);
    logs.close().unwrap();
    let file = File::open(&path).unwrap();
    let allocated = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
    assert!(allocated < 1 << 20, "{allocated} bytes are allocated for zeros");
    let bytes = std::fs::read(&path).unwrap();
    let log = Log::open(&bytes).unwrap();
    let entries: Vec<_> = log
        .entries()
        .map(|entry| entry.unwrap())
        .map(|at| (at.entry.flags, at.device_offset / 512, at.device_bytes, at.data_bytes))
        .collect();
    let most = ZEROES_ENTRY_BYTES_MAX;
    let none = EntryFlags::default();
    assert_eq!(
        entries,
        [
            (EntryFlags::DISCARD, 0, size.bytes(), 0),
            (none, 8, most, most),
            (none, 8 + most / 512, most, most),
            (EntryFlags::FUA, 8 + most / 256, most / 2, most / 2),
            (EntryFlags::MARK, 0, 0, 0),
        ]
    );
}

#[test]
fn one_leaf_has_the_file_itself_and_several_have_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("log");
    let leaf = |n: u16| (LeafId(n), format!("disk {n}"), Sectors(8));
    let one = LogWrites::create(&base, &[leaf(3)]).unwrap();
    assert_eq!(one.paths(), [(LeafId(3), base.clone())]);
    let two = LogWrites::create(&base, &[leaf(1), leaf(0)]).unwrap();
    let numbered = |n: u8| folder.path().join(format!("log.{n}"));
    assert_eq!(two.paths(), [(LeafId(0), numbered(1)), (LeafId(1), numbered(0))]);
    two.altered(LeafId(0), Op::Write, Flags::FUA, Sector(5), Sectors(1), &[segment(9, 1)]);
    two.close().unwrap();
    let entries = |path: &Path| Log::open(&std::fs::read(path).unwrap()).unwrap().superblock().nr_entries;
    assert_eq!((entries(&numbered(1)), entries(&numbered(0))), (2, 1));
}

#[test]
fn a_log_that_cannot_be_written_ends_whole_and_the_error_comes_at_the_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let logs = LogWrites::create(&path, &[(DISK, "a disk".to_owned(), Sectors(8))]).unwrap();
    let write = |value, fua| {
        logs.altered(DISK, Op::Write, fua, Sector(1), Sectors(1), &[segment(value, 1)]);
    };
    write(1, Flags::FUA);
    // Writing fails from here on, as it does on a full disk: the descriptor is for reading only.
    lock(&logs.leaves[&DISK]).file = File::open(&path).unwrap();
    write(2, Flags::NONE);
    let ticket = logs.flush_started(DISK);
    logs.flushed(DISK, ticket);
    write(3, Flags::FUA);
    let error = logs.close().unwrap_err().to_string();
    assert!(error.contains("/log: the log of writes cannot be written: "), "{error}");
    let bytes = std::fs::read(&path).unwrap();
    let mut disk = vec![0u8; 8 * 512];
    let done = replay(&Log::open(&bytes).unwrap(), Until::End, &mut disk).unwrap();
    assert_eq!((done.entries, disk[512]), (1, 1));
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = LogWrites::create(Path::new("/nowhere/at/all"), &[(DISK, String::new(), Sectors(8))]);
    let error = error.err().unwrap().to_string();
    assert!(
        error.starts_with("/nowhere/at/all: the log of writes cannot be written: No such file"),
        "{error}"
    );
}

#[test]
fn what_is_no_log_or_another_servers_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("log");
    let [first, second] = ["log.0", "log.1"].map(|name| folder.path().join(name));
    let leaves = [(LeafId(0), "a".to_owned(), Sectors(8)), (LeafId(1), "b".to_owned(), Sectors(8))];
    let create = || LogWrites::create(&base, &leaves);
    // An old log is replaced, but not where its neighbour is something else.
    let old = [Writer::new(UNIT).unwrap().superblock().encode(), vec![7; 4096]].concat();
    for disk in [vec![0; 1 << 20], b"short".to_vec()] {
        std::fs::write(&first, &old).unwrap();
        std::fs::write(&second, &disk).unwrap();
        let refused = create().err().unwrap();
        assert!(matches!(&refused, LogWritesError::NoLog { path } if path.ends_with("log.1")), "{refused}");
        assert!(std::fs::read(&first).unwrap() == old && std::fs::read(&second).unwrap() == disk);
    }
    std::fs::write(&second, "").unwrap();
    let ours = create().unwrap();
    assert_eq!(std::fs::metadata(&first).unwrap().len(), 512);
    let refused = create().err().unwrap();
    assert!(matches!(&refused, LogWritesError::InUse { path } if path.ends_with("log.0")), "{refused}");
    drop(ours);
    create().unwrap();
    std::fs::remove_file(&second).unwrap();
    std::fs::create_dir(&second).unwrap();
    assert!(matches!(create().err().unwrap(), LogWritesError::File { .. }));
}
