//! Logs of dm-log-writes.

use std::io;

use blockwork_format::log_writes::{Flags, Log, Sink, Until, Writer, replay};
use blockwork_format::{Piece, SECTOR_BYTES, Source, Sparse};

use crate::input::Input;
use crate::{assert_printable, reached};

/// A log. The input: zeros to append u16, in KiB; the start of the log.
pub fn log_writes(data: &[u8]) {
    let mut input = Input(data);
    let zeros = u64::from(input.u16()) * 1024;
    let head = Piece { offset: 0, bytes: input.0.to_vec() };
    let source = Sparse::new(head.end() + zeros, vec![head]);
    match Log::open(&source) {
        Ok(log) => check(&source, &log),
        Err(error) => {
            reached("refused");
            assert_printable(&error.to_string());
        }
    }
}

#[derive(Default)]
struct Count {
    written: u64,
    discarded: u64,
}

impl Sink for Count {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let bytes = u64::try_from(bytes.len()).expect("a length");
        offset.checked_add(bytes).expect("an end");
        self.written += bytes;
        Ok(())
    }

    fn discard(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        offset.checked_add(bytes).expect("an end");
        self.discarded = self.discarded.saturating_add(bytes);
        Ok(())
    }
}

fn check(source: &Sparse, log: &Log<'_>) {
    reached("log");
    let sectorsize = log.superblock().sectorsize;
    let mut end = u64::from(sectorsize);
    let mut writer = Writer::new(sectorsize).ok();
    let (mut entries, mut data) = (0, 0);
    for located in log.entries() {
        let located = match located {
            Ok(located) => located,
            Err(error) => {
                reached("entry refused");
                assert_printable(&error.to_string());
                break;
            }
        };
        reached("entry");
        assert_eq!((located.index, located.offset), (entries, end));
        assert!(located.data_offset > located.offset, "{located:?}");
        end = located.data_offset.checked_add(located.data_bytes).expect("an end");
        assert!(end <= source.size() || located.data_bytes == 0, "{located:?} of {}", source.size());
        located.device_offset.checked_add(located.device_bytes).expect("an end on the device");
        entries += 1;
        data += located.data_bytes;

        // Written again, it lies where it lay.
        let entry = located.entry;
        let unit = u64::from(sectorsize) / SECTOR_BYTES;
        let placed = writer.as_mut().map(|writer| match &located.mark {
            Some(mark) if entry.nr_sectors == 0 => writer.mark(mark),
            _ => writer.entry(entry.flags, entry.sector * unit, entry.nr_sectors * unit),
        });
        match placed {
            Some(Ok(placed)) => {
                assert_eq!(placed.offset, located.offset);
                assert_eq!(
                    (placed.data_offset, placed.data_bytes),
                    (located.data_offset, located.data_bytes)
                );
                assert_eq!(placed.block.len(), usize::try_from(sectorsize).expect("a block"));
            }
            // A mark whose text was no UTF-8 is longer now.
            Some(Err(_)) => {
                assert!(entry.flags.has(Flags::MARK), "{located:?}");
                writer = None;
            }
            None => {}
        }
    }
    check_replay(log, entries, data);
}

fn check_replay(log: &Log<'_>, entries: u64, data: u64) {
    let mut sink = Count::default();
    let done = replay(log, Until::Entries(entries), &mut sink).expect("entries that were read before");
    assert!(done.reached && done.entries == entries, "{done:?}");
    assert_eq!((done.written_bytes, done.discarded_bytes), (sink.written, sink.discarded));
    assert_eq!(sink.written, data);
}
