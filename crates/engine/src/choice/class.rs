//! Which requests are compared with each other only: those of a class.

use blockwork_memory::Segment;

use super::Question;
use crate::bio::Op;

/// Where the boundaries between a request's elements lie. Linux's NFS client makes one RPC of elements whose common boundaries lie
/// between pages, and one of each where they do not; other drivers have rules of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundaries {
    /// Between pages, all of them.
    Pages,
    /// Some between pages, some within.
    Mixed,
    /// Within pages, all of them.
    Within,
}

/// A question, and the requests that it is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Whether these are copied to one piece of memory first.
    Linearize(RequestClass),
    /// Whether FUA writes get a flush behind them instead of RWF_DSYNC.
    Fua {
        /// The least length, bytes; the class ends below twice that.
        bytes: u64,
    },
    /// Whether these, whose memory is one piece that the kernel knows, go by that.
    Fixed {
        /// Read or write.
        op: Op,
        /// Writes that are durable when they complete.
        fua: bool,
        /// The least length, bytes; the class ends below twice that.
        bytes: u64,
    },
}

/// What is alike in requests of several elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestClass {
    /// Read or write.
    pub op: Op,
    /// Writes that are durable when they complete.
    pub fua: bool,
    /// The least length, bytes; the class ends below twice that.
    pub bytes: u64,
    /// The least mean length of an element, bytes; likewise.
    pub element_bytes: u64,
    /// Boundaries between elements.
    pub boundaries: Boundaries,
}

const SIZES: usize = 14;
const ELEMENTS: usize = 8;
const ALIGNMENTS: usize = 3;
/// Classes of requests of several elements; those of FUA writes follow, then those of requests in known memory.
const LINEARIZE: usize = 3 * SIZES * ELEMENTS * ALIGNMENTS;
const FIXED: usize = LINEARIZE + SIZES;
/// Of classes.
pub(super) const NUMBERS: usize = FIXED + 3 * SIZES;
/// Lengths from this one on have classes, as a power of two.
const LEAST: u32 = 9;
const PAGE: usize = 4096;

/// The number of the class of a read or write of that memory, which has at least two elements.
#[inline]
pub(crate) fn linearize(op: Op, fua: bool, data: &[Segment], bytes: u64) -> usize {
    let Some((first, others)) = data.split_first() else { unreachable!("at least two elements") };
    // Of a place between pages all low bits are 0: mostly they are, and one look at all of them is enough.
    let mut places = 0;
    let mut end = first.as_ptr().addr() + first.len();
    for element in others {
        let start = element.as_ptr().addr();
        places |= end | start;
        end = start + element.len();
    }
    let boundaries = if places.is_multiple_of(PAGE) { 0 } else { within(data) };
    let op = direction(op, fua);
    let size = octave(bytes, SIZES);
    let element = octave(bytes / data.len() as u64, ELEMENTS);
    ((op * SIZES + size) * ELEMENTS + element) * ALIGNMENTS + boundaries
}

/// How boundaries lie of which some are within pages: 1 where others are not, else 2.
fn within(data: &[Segment]) -> usize {
    let are_between = |pair: &[Segment]| {
        let end = pair[0].as_ptr().addr() + pair[0].len();
        (end | pair[1].as_ptr().addr()).is_multiple_of(PAGE)
    };
    if data.windows(2).any(are_between) { 1 } else { 2 }
}

/// The number of the class of a FUA write of so many bytes.
#[inline]
pub(crate) fn fua(bytes: u64) -> usize {
    LINEARIZE + octave(bytes, SIZES)
}

/// The number of the class of a read or write of so many bytes in one piece of memory that the kernel knows.
#[inline]
pub(crate) fn fixed(op: Op, fua: bool, bytes: u64) -> usize {
    FIXED + direction(op, fua) * SIZES + octave(bytes, SIZES)
}

/// The question of the classes of this number, if a queue may be calm about it. Not `fua`: such writes are few and dear, and are paid for in
/// another time.
pub(super) fn question(number: usize) -> Option<Question> {
    match number {
        0..LINEARIZE => Some(Question::Linearize),
        LINEARIZE..FIXED => None,
        _ => Some(Question::Fixed),
    }
}

#[inline]
fn direction(op: Op, fua: bool) -> usize {
    if op == Op::Read { 0 } else { 1 + usize::from(fua) }
}

/// The operation of a direction, and whether it is durable when it completes.
fn of_direction(direction: usize) -> (Op, bool) {
    (if direction == 0 { Op::Read } else { Op::Write }, direction == 2)
}

#[inline]
fn octave(bytes: u64, most: usize) -> usize {
    (bytes.max(1).ilog2().saturating_sub(LEAST) as usize).min(most - 1)
}

impl Subject {
    /// That of the classes of this number.
    pub(super) fn of(number: usize) -> Subject {
        let bytes = |size: usize| 1 << (LEAST as usize + size);
        match number {
            0..LINEARIZE => Subject::Linearize(RequestClass::of(number)),
            LINEARIZE..FIXED => Subject::Fua { bytes: bytes(number - LINEARIZE) },
            _ => {
                let (op, fua) = of_direction((number - FIXED) / SIZES);
                Subject::Fixed { op, fua, bytes: bytes((number - FIXED) % SIZES) }
            }
        }
    }
    /// The setting that answers the question.
    pub fn setting(self) -> &'static str {
        match self {
            Subject::Linearize(_) => "linearize",
            Subject::Fua { .. } => "fua",
            Subject::Fixed { .. } => "fixed",
        }
    }
    /// What the two ways are called.
    pub fn ways(self) -> [&'static str; 2] {
        match self {
            Subject::Linearize(_) => ["vectored", "linear"],
            Subject::Fua { .. } => ["dsync", "flush"],
            Subject::Fixed { .. } => ["fixed", "plain"],
        }
    }
}

impl std::fmt::Display for Subject {
    /// As in `writes of 32 KiB in 4 KiB off pages`, `FUA writes of 4 KiB`, or `reads of 64 KiB in one piece`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Linearize(class) => class.fmt(f),
            Subject::Fua { bytes } => write!(f, "FUA writes of {}", size(*bytes)),
            Subject::Fixed { op, fua, bytes } => {
                write!(f, "{} of {} in one piece", plural(*op, *fua), size(*bytes))
            }
        }
    }
}

impl RequestClass {
    /// The class of that number.
    fn of(number: usize) -> RequestClass {
        let (rest, boundaries) = (number / ALIGNMENTS, number % ALIGNMENTS);
        let (rest, element) = (rest / ELEMENTS, rest % ELEMENTS);
        let (direction, size) = (rest / SIZES, rest % SIZES);
        let (op, fua) = of_direction(direction);
        RequestClass {
            op,
            fua,
            bytes: 1 << (LEAST as usize + size),
            element_bytes: 1 << (LEAST as usize + element),
            boundaries: [Boundaries::Pages, Boundaries::Mixed, Boundaries::Within][boundaries],
        }
    }
}

impl std::fmt::Display for RequestClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let op = plural(self.op, self.fua);
        let boundaries = match self.boundaries {
            Boundaries::Pages => "at pages",
            Boundaries::Mixed => "partly at pages",
            Boundaries::Within => "off pages",
        };
        write!(f, "{op} of {} in {} {boundaries}", size(self.bytes), size(self.element_bytes))
    }
}

fn plural(op: Op, fua: bool) -> &'static str {
    match (op, fua) {
        (Op::Read, _) => "reads",
        (_, true) => "FUA writes",
        _ => "writes",
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use blockwork_memory::Buffer;

    use super::*;

    fn class(op: Op, lengths: &[(usize, usize)]) -> RequestClass {
        let buffers =
            lengths.iter().map(|&(offset, len)| Segment::new(Buffer::new(offset + len), offset, len));
        let data: Vec<_> = buffers.collect();
        RequestClass::of(linearize(op, false, &data, data.iter().map(|segment| segment.len() as u64).sum()))
    }

    #[test]
    fn elements_are_told_apart_by_their_boundaries_not_by_the_outer_ends() {
        let pages = class(Op::Write, &[(512, 3584), (0, 4096), (0, 512)]);
        assert_eq!((pages.boundaries, pages.bytes, pages.element_bytes), (Boundaries::Pages, 8192, 2048));
        assert_eq!(class(Op::Read, &[(512, 4096); 8]).boundaries, Boundaries::Within);
        assert_eq!(class(Op::Read, &[(0, 4096), (0, 512), (0, 512)]).boundaries, Boundaries::Mixed);
    }

    #[test]
    fn every_number_is_a_class_of_its_own() {
        let text: std::collections::BTreeSet<_> =
            (0..NUMBERS).map(|number| Subject::of(number).to_string()).collect();
        assert_eq!(text.len(), NUMBERS);
        assert!(text.contains("writes of 32 KiB in 4 KiB off pages"));
        assert_eq!(Subject::of(fua(5000)), Subject::Fua { bytes: 4096 });
        for (op, fua) in [(Op::Read, false), (Op::Write, false), (Op::Write, true)] {
            assert_eq!(Subject::of(fixed(op, fua, 65536)), Subject::Fixed { op, fua, bytes: 65536 });
        }
        assert!(
            text.contains("reads of 64 KiB in one piece")
                && text.contains("FUA writes of 4 KiB in one piece")
        );
    }
}
