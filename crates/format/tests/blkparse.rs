//! Our traces and our text against blkparse: what it reads without a word on stderr, and what it prints, line for line.

mod tool;

use std::fs;
use std::process::Command;

use blockwork_format::blktrace::{
    Act, ByteOrder, Category, Decoder, Device, Formatter, Record, Remap, decode, record,
};
use proptest::prelude::*;

/// blkparse's lines about records: those with the nine columns of its default format.
fn blkparse(records: &[Record<'_>]) -> Vec<String> {
    let mut bytes = Vec::new();
    for record in records {
        record.encode(&mut bytes);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.blktrace.0"), bytes).unwrap();
    let mut command = Command::new("blkparse");
    let output = tool::output(command.args(["-i", "t"]).current_dir(folder.path()), "blktrace");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "blkparse says: {stderr}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let end = text.find("CPU0 (").unwrap_or(text.len());
    text[..end].lines().map(str::to_owned).collect()
}

fn ours(records: &[Record<'_>]) -> Vec<String> {
    let (mut formatter, mut text) = (Formatter::new(), String::new());
    for record in records {
        formatter.line(record, &mut text);
    }
    text.lines().map(str::to_owned).collect()
}

/// Numbers the records, and lets time pass between them.
fn timed(mut records: Vec<Record<'static>>) -> Vec<Record<'static>> {
    for (i, record) in (0u32..).zip(&mut records) {
        record.time_ns = 5_000_000_000 + u64::from(i) * 123_456_789;
        if record.action.as_note().is_none() {
            record.sequence = i + 1;
        }
    }
    records
}

const DISK: Device = Device(8 << 20 | 16);

fn an_io(act: Act, io: Category, sector: u64, bytes: u32) -> Record<'static> {
    Record { pid: 4711, ..Record::new(act, io | Category::FS, DISK, sector, bytes) }
}

#[test]
fn every_act_and_note_is_printed_as_blkparse_prints_it() {
    let (read, write) = (Category::READ, Category::WRITE);
    let remap = Remap { from: Device::new(253, 3), to: DISK, sector_from: 77 };
    let mut records = vec![
        Record::timestamp(1_700_000_000, 5),
        Record::process(4711, "fio"),
        Record::process(12, "a-name-of-more-than-15-bytes"),
        an_io(Act::Queue, read, 2048, 4096),
        an_io(Act::GetRequest, read, 2048, 4096),
        an_io(Act::Plug, Category(0), 0, 0),
        an_io(Act::Queue, write | Category::SYNC, 8, 512),
        Record { pid: 12, ..an_io(Act::BackMerge, write, 16, 4096) },
        an_io(Act::FrontMerge, write | Category::META, 0, 4096),
        Record { pid: 4711, ..Record::unplug(DISK, 3) },
        an_io(Act::UnplugTimer, Category(0), 0, 0),
        an_io(Act::Insert, write | Category::FUA, 8, 512),
        an_io(Act::SleepRequest, read | Category::AHEAD, 8, 512),
        an_io(Act::Issue, write, 123_456_789_012, 131_072),
        Record { pid: 99, ..an_io(Act::Requeue, write, 123_456_789_012, 131_072) },
        Record { error: 5, cpu: 0, ..an_io(Act::Complete, read, 2048, 4096) },
        an_io(Act::Complete, write | Category::FLUSH, 0, 0),
        an_io(Act::Queue, write | Category::FLUSH | Category::FUA | Category::SYNC | Category::META, 0, 0),
        an_io(Act::Issue, write | Category::DISCARD | Category::SYNC, 0, 1 << 30),
        an_io(Act::Bounce, read, 5, 1024),
        Record { pid: 4711, ..Record::split(read | Category::FS, DISK, 64, 65536, 128) },
        Record { pid: 4711, ..Record::remap(write | Category::FS, 4096, 2125, remap) },
        Record { pid: 4711, sequence: 3, ..Record::message(DISK, "split: max_sectors") },
        an_io(Act::GetRequest, read, 0, 0),
    ];
    records[10].payload = 7u64.to_be_bytes().to_vec().into();
    let records = timed(records);
    let (theirs, ours) = (blkparse(&records), ours(&records));
    assert_eq!(ours.len(), 21, "{ours:#?}");
    assert_eq!(ours, theirs);
}

/// blkparse 1.2.0 itself calls such a record a "Bad fs action" and prints nothing.
#[test]
fn an_io_of_a_cgroup_is_printed_as_one_of_none() {
    let plain = timed(vec![an_io(Act::Queue, Category::READ, 2048, 4096)]);
    let mut bytes = Vec::new();
    Record { cgroup: Some(0x1234_5678_0000_0001), ..plain[0].clone() }.encode(&mut bytes);
    let (record, _) = decode(&bytes, 0).unwrap().unwrap();
    assert_eq!(ours(&[record]), blkparse(&plain));
}

#[test]
fn a_passed_through_command_is_printed_as_blkparse_prints_it() {
    let command = |act, cdb: &'static [u8]| Record {
        payload: cdb.into(),
        ..Record::new(act, Category::READ | Category::PC, DISK, 0, 252)
    };
    let records = timed(vec![
        command(Act::Issue, &[0x12, 0x01, 0x00, 0x80, 0, 0]),
        command(Act::Complete, &[0x12, 0x01, 0x00, 0x80, 0, 0]),
        command(Act::Insert, &[0x12, 0x01]),
    ]);
    assert_eq!(ours(&records), blkparse(&records));
}

#[test]
fn text_from_a_trace_cannot_forge_a_line() {
    let mut formatter = Formatter::new();
    let mut text = String::new();
    let forged = "x]\n  8,0 forged\x1b[2J";
    formatter.line(&Record::process(4711, "a\nb\x1b"), &mut text);
    formatter.line(&Record::message(DISK, forged), &mut text);
    formatter.line(&an_io(Act::Queue, Category::READ, 0, 512), &mut text);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("x]\\n  8,0 forged\\u{1b}[2J") && text.contains("[a\\nb\\u{1b}]"), "{text}");
}

#[test]
fn a_trace_that_was_cut_gives_its_whole_records_and_then_one_error() {
    let mut bytes = Vec::new();
    Record::unplug(DISK, 1).encode(&mut bytes);
    let whole = bytes.len();
    Record::unplug(DISK, 2).encode(&mut bytes);
    for end in 0..bytes.len() {
        let results: Vec<_> = Decoder::new(&bytes[..end]).collect();
        let (good, cut) = (end / whole, usize::from(end % whole != 0));
        assert_eq!(
            (results.iter().filter(|r| r.is_ok()).count(), results.len()),
            (good, good + cut),
            "{end}"
        );
        assert_eq!(decode(&bytes[..end], 0).unwrap().is_none(), good == 0, "{end}");
    }
    let error = Decoder::new(&bytes[..whole + 5]).last().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("blktrace record at 56: length is 5, expected a whole record"), "{error}");
}

#[test]
fn what_is_no_record_names_the_magic_or_the_version() {
    let error =
        decode(b"NOT A TRACE, BUT LONG ENOUGH TO BE ONE RECORD OF A TRACE", 4).unwrap_err().to_string();
    let expected =
        "blktrace record at 4: magic is 0x20544f4e, expected 0x65617400 and a version, in either byte order";
    assert_eq!(error, expected);
    let error = decode(&[9, 0x74, 0x61, 0x65], 0).unwrap_err().to_string();
    assert_eq!(error, "blktrace record at 0: version is 9, expected 7 or 8");
}

/// The same record as the other kinds of machine and kernel would write it.
fn encoded(record: &Record<'_>, big: bool, v8: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |little: &[u8]| {
        let mut bytes = little.to_vec();
        if big {
            bytes.reverse();
        }
        out.extend(bytes);
    };
    let payload = record.payload.len() + if record.cgroup.is_some() { 8 } else { 0 };
    let action = record.action.0 | if record.cgroup.is_some() { 0x100 } else { 0 };
    put(&(0x6561_7400u32 | if v8 { 8 } else { 7 }).to_le_bytes());
    put(&record.sequence.to_le_bytes());
    put(&record.time_ns.to_le_bytes());
    put(&record.sector.to_le_bytes());
    put(&record.bytes.to_le_bytes());
    if v8 {
        put(&record.pid.to_le_bytes());
        put(&action.to_le_bytes());
    } else {
        put(&u32::try_from(action).unwrap().to_le_bytes());
        put(&record.pid.to_le_bytes());
    }
    put(&record.device.0.to_le_bytes());
    put(&record.cpu.to_le_bytes());
    put(&record.error.to_le_bytes());
    put(&u16::try_from(payload).unwrap().to_le_bytes());
    if v8 {
        put(&[0; 12]);
    }
    if let Some(cgroup) = record.cgroup {
        put(&cgroup.to_le_bytes());
    }
    out.extend(&*record.payload);
    out
}

fn any_record() -> impl Strategy<Value = Record<'static>> {
    let io = (0..Act::ALL.len(), any::<u16>(), any::<u64>(), any::<u32>(), any::<u32>());
    let rest = (any::<u32>(), any::<u64>(), any::<u32>(), any::<u16>(), any::<Option<u64>>());
    (io, rest, any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(
        |((act, io, sector, bytes, device), (sequence, time_ns, pid, error, cgroup), cpu, payload)| Record {
            sequence,
            time_ns,
            pid,
            cpu,
            error,
            cgroup,
            payload: payload.into(),
            ..Record::new(Act::ALL[act], Category(io), Device(device), sector, bytes)
        },
    )
}

proptest! {
    #[test]
    fn a_record_of_either_version_and_byte_order_decodes_to_what_was_encoded(
        record in any_record(), big: bool, v8: bool,
    ) {
        let bytes = encoded(&record, big, v8);
        let (decoded, taken) = decode(&bytes, 0).unwrap().unwrap();
        let action = decoded.action;
        prop_assert_eq!(action.has_cgroup(), record.cgroup.is_some());
        prop_assert_eq!(action.0 & !0x100, record.action.0);
        let order = if big { ByteOrder::Big } else { ByteOrder::Little };
        prop_assert_eq!(decoded, Record { action, order, ..record.clone() });
        prop_assert_eq!(taken, bytes.len());
        if !big && !v8 {
            let mut ours = Vec::new();
            record.encode(&mut ours);
            prop_assert_eq!(ours, bytes);
            prop_assert_eq!(taken - record.payload.len() - if record.cgroup.is_some() { 8 } else { 0 },
                record::HEADER_BYTES);
        }
    }
}
