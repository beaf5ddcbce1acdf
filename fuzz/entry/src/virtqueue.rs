//! Rings of a hostile driver, split and packed, with marks of requests in flight that a hostile front end has written; and the
//! messages of such a front end.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use blockwork_export::vhost::ring::{Chain, Head, Ring, RingPlace};
use blockwork_export::vhost::{BIO_BYTES_MAX, Marks, Request};
use blockwork_format::vhost_user::{HEADER_BYTES, Header, Message, VringAddr};
use blockwork_format::virtio::split;
use blockwork_memory::{Buffer, GuestLayout, GuestMemory, GuestRange, GuestRegion, Mapping, Place};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;
use crate::{assert_printable, reached};

pub(crate) const PACKED: u8 = 1;
pub(crate) const EVENT_IDX: u8 = 2;
/// There are marks of requests in flight.
pub(crate) const MARKS: u8 = 4;
/// A packed ring has one descriptor less, so that it is no power of two.
pub(crate) const ODD: u8 = 8;
/// The memory is two regions, side by side.
pub(crate) const REGIONS: u8 = 16;

/// The guest's memory: all addresses from here on, both the guest's and the front end's.
pub(crate) const MEMORY: u64 = 0x10000;
const BYTES: usize = 16 << 10;
/// Places in it.
pub(crate) const AVAILABLE: usize = 0x400;
pub(crate) const USED: usize = 0x600;
pub(crate) const MARKS_AT: usize = 0x800;
/// Where the second region begins: in an indirect table, if that lies where the seeds have it.
const BOUNDARY: u64 = 0xb18;
/// What of the memory is in the input.
pub(crate) const CONTENT: usize = 0xc00;

/// Steps, modulo 6.
pub(crate) const NEXT: u8 = 0;
/// One of those in flight: bytes written u8, which u8.
pub(crate) const COMPLETE: u8 = 1;
pub(crate) const PUBLISH: u8 = 2;
pub(crate) const WANT_CALLS: u8 = 3;
/// The driver changes a byte: where u16, what u8.
pub(crate) const CHANGE: u8 = 4;
pub(crate) const RESUME: u8 = 5;

/// The input: flags u8, size u8 (modulo 8 as a power of two; divided by 8 the number of marks, 0: as many as descriptors), base u32, steps (count u8, then as many), and the memory's content: at 0
/// descriptors, then the available ring (what a packed ring's driver says about events), the used ring, marks.
pub fn virtqueue(data: &[u8]) {
    let mut input = Input(data);
    let (flags, sizes, base) = (input.u8(), input.u8(), input.u32());
    let is_packed = flags & PACKED != 0;
    let size = (1_u32 << (sizes % 8 % 5)) - u32::from(is_packed && flags & ODD != 0);
    let count = input.u8();
    let steps = input.bytes(usize::from(count) * 4);
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd"));
    ftruncate(&file, BYTES as u64).expect("a size");
    let mapping = Mapping::new(file.as_fd(), BYTES as u64).expect("a mapping");
    let memory = Buffer::of_mapping(&mapping, 0, BYTES);
    memory.write_at(0, input.bytes(CONTENT));
    let region = |offset: u64, end: u64| {
        let at = MEMORY + offset;
        GuestRegion { guest: at, user: at, len: end - offset, mapping: mapping.clone(), offset }
    };
    let regions = match flags & REGIONS {
        0 => vec![region(0, BYTES as u64)],
        _ => vec![region(0, BOUNDARY), region(BOUNDARY, BYTES as u64)],
    };
    let layout = GuestLayout::new(regions).expect("regions that lie apart");
    let address = VringAddr {
        index: 0,
        flags: 0,
        descriptors: MEMORY,
        used: MEMORY + USED as u64,
        available: MEMORY + AVAILABLE as u64,
        log: 0,
    };
    let place = RingPlace { size, is_packed, event_idx: flags & EVENT_IDX != 0, address };
    let marks = (flags & MARKS != 0).then(|| {
        let count = if sizes < 8 { u16::try_from(size).expect("small") } else { u16::from(sizes / 8) };
        Marks::new(&Place { mapping, offset: MARKS_AT }, count, is_packed).expect("there is room for them")
    });
    let recovered = marks.map(|marks| Ring::recover(&layout, &place, base, marks)).transpose();
    match recovered.and_then(|recovered| Ring::new(&layout, &place, base, recovered)) {
        Ok(ring) => {
            let used = memory.load_u16(USED + split::INDEX, Ordering::Relaxed);
            let used = (!is_packed).then_some(Used { index: used, answers: Vec::new(), is_changed: false });
            Driven { ring, memory, guest: GuestMemory::new(&layout), size, in_flight: Vec::new(), used }
                .run(steps)
        }
        Err(error) => {
            reached("no ring");
            assert_printable(&error.to_string());
        }
    }
}

struct Driven {
    ring: Ring,
    memory: Buffer,
    guest: GuestMemory,
    size: u32,
    in_flight: Vec<Head>,
    used: Option<Used>,
}

/// What a split ring's driver is to find.
struct Used {
    /// The index that it sees.
    index: u16,
    /// Descriptors and lengths of what was answered and is not published.
    answers: Vec<(u16, u32)>,
    /// It has written to that part of the memory itself.
    is_changed: bool,
}

impl Driven {
    fn run(mut self, steps: &[u8]) {
        for step in steps.chunks(4) {
            let mut step = Input(step);
            let result = match step.u8() % 6 {
                COMPLETE => {
                    if !self.in_flight.is_empty() {
                        let (written, which) =
                            (step.u8().into(), usize::from(step.u8()) % self.in_flight.len());
                        let head = self.in_flight.remove(which);
                        self.complete(head, written);
                        reached(if which == 0 { "completed" } else { "overtaken" });
                    }
                    continue;
                }
                PUBLISH => {
                    self.publish();
                    continue;
                }
                WANT_CALLS => {
                    self.ring.enable_calls();
                    continue;
                }
                CHANGE => {
                    let at = usize::from(step.u16()) % BYTES;
                    self.memory.write_at(at, &[step.u8()]);
                    if let Some(used) = &mut self.used {
                        used.is_changed |= (USED..MARKS_AT).contains(&at);
                    }
                    continue;
                }
                kind => self.take(kind == RESUME),
            };
            match result {
                Ok(()) => {}
                Err(error) => {
                    reached("broken");
                    assert_printable(&error.to_string());
                    break;
                }
            }
        }
        // What is in flight is answered, also in a ring that is broken.
        for head in std::mem::take(&mut self.in_flight) {
            self.complete(head, 1);
        }
        self.publish();
    }

    fn complete(&mut self, head: Head, written: u32) {
        self.ring.complete(head, written);
        if let Some(used) = &mut self.used {
            used.answers.push((head.id(), written));
        }
    }

    /// The driver finds all answers, in their order, unless it has spoiled them itself.
    fn publish(&mut self) {
        self.ring.publish();
        let Some(used) = &mut self.used else { return };
        for (id, written) in used.answers.drain(..) {
            let place = u32::from(used.index) % self.size;
            let at = USED + split::ENTRIES + split::USED_ENTRY * place as usize;
            used.index = used.index.wrapping_add(1);
            let mut entry = [0; split::USED_ENTRY];
            self.memory.read_at(at, &mut entry);
            let expected = [u32::from(id).to_le_bytes(), written.to_le_bytes()].concat();
            assert!(used.is_changed || entry[..] == expected, "at {at:#x}: {entry:?}, expected {expected:?}");
        }
        let index = self.memory.load_u16(USED + split::INDEX, Ordering::Relaxed);
        assert!(used.is_changed || index == used.index, "{index}, expected {}", used.index);
        reached("published");
    }

    fn take(&mut self, resume: bool) -> Result<(), blockwork_export::vhost::ring::RingError> {
        let mut chain = Chain::default();
        let took = if resume {
            self.ring.resume(&self.guest, &mut chain)?
        } else {
            let waiting = self.ring.waiting();
            assert_eq!(waiting > 0, self.ring.has_more());
            assert!(waiting <= self.size as usize);
            // Of a packed ring, what waits is known to the half.
            let near = self.ring.bring_near(&self.guest);
            assert!(near <= self.size as usize && (near == 0 || waiting > 0));
            self.ring.next(&self.guest, &mut chain)?
        };
        if !took {
            return Ok(());
        }
        reached(if resume { "resumed" } else { "chain" });
        assert!(!self.in_flight.iter().any(|head| head.id() == chain.head.id()), "{:?} twice", chain.head);
        self.in_flight.push(chain.head);
        assert!(self.in_flight.len() <= self.size as usize);
        for range in &chain.pieces {
            let segment = self.guest.segment(*range);
            assert!(!segment.is_empty() && segment.offset() + segment.len() <= BYTES);
        }
        let Some(request) = Request::take(&mut chain, &self.guest) else {
            return Err(Request::too_short(&chain));
        };
        reached("request");
        assert_eq!(request.status.len(), 1);
        let bytes_in = |ranges: &[GuestRange]| ranges.iter().map(GuestRange::len).sum::<usize>();
        if let Some(ranges) = request.ranges(&self.guest, 64) {
            assert!(!ranges.is_empty() && ranges.len() * 16 == bytes_in(request.sent));
        }
        assert!(bytes_in(request.room) < BIO_BYTES_MAX * 64);
        Ok(())
    }
}

/// A message of a front end: its header and what follows.
pub fn vhost_user(data: &[u8]) {
    let Some((head, payload)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let header = match Header::decode(head) {
        Ok(header) => header,
        Err(error) => {
            reached("no header");
            return assert_printable(&error.to_string());
        }
    };
    match Message::decode(&header, payload) {
        Ok(Message::Unknown(number)) => assert_eq!(number, header.request),
        Ok(message) => {
            reached("message");
            let bytes = message.encode(header.needs_reply());
            let again = Message::decode(&header, &bytes[HEADER_BYTES..]);
            assert_eq!(again.as_ref(), Ok(&message));
            let (least, most) = message.files();
            assert!(least <= most && most <= 8);
        }
        Err(error) => {
            reached("refused");
            assert_printable(&error.to_string());
        }
    }
}
