//! What a buffer of ours that stands between a device and a client's memory lets through: what was transferred, and nothing else.
//!
//! Pools give buffers out as they came back. So each test has something written first, through the worker's own pool, that belongs to
//! somebody else; and looks for it in the memory of a read that did not succeed, or not at once. That memory may be a guest's.

mod rig;

use blockwork_engine::*;
use blockwork_memory::Segments;
use rig::{Rig, limits};

/// What the client's memory holds.
const UNTOUCHED: u8 = 0xee;
/// What somebody else has written.
const SECRET: u8 = 0x55;
/// What is on the device where the client reads.
const OURS: u8 = 0x11;
/// Where the client reads, and how much.
const AT: u64 = 4096;
const NR: u64 = 16;

/// Why a request is copied.
#[derive(Clone, Copy, Debug)]
enum Why {
    Misaligned,
    Linearized,
    TooManyPieces,
}

impl Why {
    const ALL: [Why; 3] = [Why::Misaligned, Why::Linearized, Why::TooManyPieces];

    fn rig(self) -> Rig {
        let mut limits = limits();
        match self {
            Why::Misaligned => limits.dma_alignment = 512,
            Why::Linearized => limits.set("linearize", "on").unwrap(),
            Why::TooManyPieces => (limits.logical_block_size, limits.max_segments) = (NR as u32 * 512, 2),
        }
        let mut rig = Rig::new(limits);
        let secret = self.memory(&rig, SECRET);
        rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(0), secret)]);
        let range = (AT * 512) as usize..((AT + NR) * 512) as usize;
        rig.device.lock().unwrap().bytes[range].fill(OURS);
        rig.client.borrow_mut().done.clear();
        rig.clear_seen();
        rig
    }

    /// Memory that has to be copied, or is.
    fn memory(self, rig: &Rig, fill: u8) -> Segments {
        let piece = |at, len: u64| rig.memory(2 * len, fill)[0].slice(at, len as usize * 512);
        match self {
            Why::Misaligned => Segments::from_iter([piece(100, NR)]),
            Why::Linearized | Why::TooManyPieces => (0..NR / 4).map(|_| piece(512, 4)).collect(),
        }
    }

    fn read(self, rig: &mut Rig) {
        let bio = Bio::with_data(Op::Read, Flags::NONE, Sector(AT), self.memory(rig, UNTOUCHED));
        rig.batch([bio]);
        let copied = rig.count(Counter::Bounced) + rig.count(Counter::Linearized);
        assert_eq!(copied, 2, "{self:?}: the write and the read are copied");
    }
}

/// What each sector of `bytes` is filled with.
fn fills(bytes: &[u8]) -> Vec<u8> {
    let fill = |sector: &[u8]| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is one or the other");
        sector[0]
    };
    bytes.chunks(512).map(fill).collect()
}

/// So many sectors of ours, and after them memory that is as it was.
fn ours(sectors: u64) -> Vec<u8> {
    (0..NR).map(|sector| if sector < sectors { OURS } else { UNTOUCHED }).collect()
}

#[test]
fn a_read_of_a_bad_sector_leaves_the_memory_as_it_was() {
    for why in Why::ALL {
        let mut rig = why.rig();
        rig.device.lock().unwrap().bad = vec![AT + 5];
        why.read(&mut rig);
        assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
        assert_eq!(fills(&rig.data_of(0)), ours(0), "{why:?}");
    }
}

#[test]
fn a_read_beyond_the_end_of_a_file_that_has_shrunk_brings_what_is_before_it_and_nothing_else() {
    for why in [Why::Misaligned, Why::Linearized] {
        let mut rig = why.rig();
        rig.hold();
        // In the middle of a sector, which is not transferred as a whole.
        rig.device.lock().unwrap().shrunk_to = Some(((AT + 6) * 512 + 100) as usize);
        why.read(&mut rig);
        rig.complete_all();
        assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
        assert_eq!(fills(&rig.data_of(0)), ours(6), "{why:?}");
    }
}

#[test]
fn a_read_that_is_interrupted_and_then_fails_leaves_the_memory_as_it_was() {
    for why in Why::ALL {
        let mut rig = why.rig();
        rig.hold();
        rig.device.lock().unwrap().shrunk_to = Some((AT * 512) as usize);
        why.read(&mut rig);
        for errno in [Errno::EINTR, Errno::EAGAIN, Errno::EIO] {
            let held = rig.next_held();
            rig.complete(held, Err(errno));
        }
        assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
        assert_eq!(fills(&rig.data_of(0)), ours(0), "{why:?}");
    }
}

#[test]
fn while_the_rest_of_a_short_read_is_under_way_nothing_of_it_is_in_the_memory() {
    for why in [Why::Misaligned, Why::Linearized] {
        let mut rig = why.rig();
        rig.hold();
        let memory = why.memory(&rig, UNTOUCHED);
        rig.device.lock().unwrap().shrunk_to = Some(((AT + 8) * 512) as usize);
        rig.batch([Bio::with_data(Op::Read, Flags::NONE, Sector(AT), memory.clone())]);
        let held = rig.next_held();
        rig.complete(held, Ok(()));
        let mut now = Vec::new();
        for segment in &memory {
            let mut bytes = vec![0; segment.len()];
            segment.read_at(0, &mut bytes);
            now.extend(bytes);
        }
        assert_eq!(fills(&now), ours(8), "{why:?}");
        // The file has grown again meanwhile; what the device gets then is the rest of what was asked.
        rig.device.lock().unwrap().shrunk_to = None;
        let held = rig.next_held();
        assert_eq!((held.sector, held.nr, held.bytes), (AT + 8, 8, 0));
        rig.complete(held, Err(Errno::EAGAIN));
        rig.complete_all();
        rig.all_succeeded(1);
        assert_eq!(fills(&rig.data_of(0)), ours(NR), "{why:?}");
    }
}
