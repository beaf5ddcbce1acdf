//! RAID10: near, far and offset copies, in any number and on any number of members.
//!
//! Positions make all layouts one. Chunk `c` with N near copies has positions `c·N .. c·N + N`; position `p` has *column*
//! `p mod n` and *line* `p / n`, as if the near copies were all there were. Its far copy `j` (0 is the position itself) is
//!
//! - on the member `far[column][j]`: within the far set, N members further for each `j`. It does not depend on the line;
//! - in the row `line + j·stride` with far copies, `line·F + j` with offset: in both cases `line·pitch + j·stride`.
//!
//! For a given `j`, columns and members are each other's permutation (else chunks would share places, and there is no
//! such [`Raid10Layout`]). So the positions of a contiguous range that are on one member as copy `j` come from one column:
//! their lines are contiguous, and only the first and the last of them can be in a partial chunk. That is why a
//! discard, however large, is one range per member and far part. With offset, the rows of all `j` interleave: the lines
//! between the first and the last are there with every `j`, one range in all; the first and the last line may lack some `j`.
//!
//! Reads: near copies take turns by *runs*: so many chunks that each of the members that take part reads at least 4 MiB.
//! Large against what a disk reads ahead, which the other copy is asked for where a run ends (see `raid1.rs`). A run
//! is whole periods of the layout (n / gcd(n, N) chunks, each on another member), so that no member is left out.
//! Far and offset copies are read where Linux reads them, from the first copy: there the chunks are on all members in turn.

use blockwork_engine::{Sector, Sectors};
use blockwork_format::md::{RAID_DISKS_MAX, RAID10_CHUNK_SECTORS_MIN, Raid10Layout};

use super::geometry::{GeometryError, Place, Places, READ_TURN, chunk_u32, device};
use crate::divisor::Divisor;

/// Stripes of mirrors.
#[derive(Clone, Debug)]
pub struct Raid10 {
    layout: Raid10Layout,
    chunk_shift: u32,
    near: u64,
    far: Divisor,
    /// Members: positions of a line.
    width: Divisor,
    /// Rows from a line to the next.
    pitch: u64,
    /// Rows from a far copy to the next.
    stride: u64,
    /// Whether the rows of the far copies lie between each other.
    interleaved: bool,
    far_copies: FarCopies,
    /// Chunks until the columns repeat: so many chunks, near copy by near copy, are each on another member.
    period: u64,
    /// Chunks of a run of reads.
    run: Divisor,
    turns: Divisor,
    chunks: u64,
    rows: u64,
}

/// The members of far copies, both ways.
#[derive(Clone, Debug)]
struct FarCopies {
    /// Member of copy `j` of `column`: at `column * far + j`.
    members: Box<[u16]>,
    /// Column whose copy `j` is on `member`: at `member * far + j`.
    columns: Box<[u16]>,
}

impl FarCopies {
    /// `None` if two columns have a copy on the same member, in the same row.
    fn new(layout: &Raid10Layout, disks: u16) -> Option<FarCopies> {
        let (width, far) = (usize::from(disks), layout.far_copies() as usize);
        let mut members = Vec::with_capacity(width * far);
        let mut columns = vec![None; width * far];
        for column in 0..disks {
            let mut member = column;
            for j in 0..far {
                members.push(member);
                let before = columns[usize::from(member) * far + j].replace(column);
                if before.is_some() {
                    return None;
                }
                member = next_far_member(layout, member);
            }
        }
        let columns = columns.into_iter().collect::<Option<Vec<u16>>>()?;
        Some(FarCopies { members: members.into(), columns: columns.into() })
    }
}

/// The member of the next far copy of what is on `member`.
fn next_far_member(layout: &Raid10Layout, member: u16) -> u16 {
    let (disks, set_disks) = (layout.disks(), layout.far_set_disks());
    let set = u32::from(member) / set_disks;
    let next = u32::from(member) + layout.near_copies();
    // Where sets do not divide the disks, the last one has what is left over.
    let left_over = disks % set_disks;
    let last = (disks / set_disks - 1) * set_disks;
    let next = if left_over != 0 && next > last {
        last + (next - last) % (set_disks + left_over)
    } else {
        set * set_disks + next % set_disks
    };
    next as u16
}

/// A number that a layout has at least one of.
fn divisor(n: u64) -> Divisor {
    Divisor::new(n.try_into().expect("a layout has no number that is 0"))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Raid10 {
    pub(super) fn new(
        layout: Raid10Layout,
        chunk: Sectors,
        member_sectors: Sectors,
    ) -> Result<Raid10, GeometryError> {
        let disks = layout.disks();
        let members = u16::try_from(disks).ok().filter(|_| disks <= RAID_DISKS_MAX);
        let members = members.ok_or(GeometryError::Members(disks))?;
        if !chunk.0.is_power_of_two() || chunk.0 < RAID10_CHUNK_SECTORS_MIN.into() {
            let expected = "a power of two of at least 8 sectors in a RAID10";
            return Err(GeometryError::Chunk { expected, found: chunk });
        }
        let sizes = layout.sizes(chunk_u32(chunk)?, device(member_sectors)?.0)?;
        if sizes.array_chunks == 0 {
            return Err(GeometryError::Small { member: member_sectors, chunk });
        }
        device(Sectors(sizes.array_sectors))?;
        let far_copies = FarCopies::new(&layout, members)
            .ok_or(GeometryError::Overlap { layout: layout.encode(), members })?;
        let (near, far) = (u64::from(layout.near_copies()), u64::from(layout.far_copies()));
        let interleaved = layout.is_offset() && far > 1;
        let period = u64::from(disks) / gcd(disks.into(), near);
        Ok(Raid10 {
            layout,
            chunk_shift: chunk.0.trailing_zeros(),
            near,
            far: divisor(far),
            width: divisor(disks.into()),
            pitch: if interleaved { far } else { 1 },
            stride: if interleaved { 1 } else { sizes.rows / far },
            interleaved,
            far_copies,
            period,
            run: divisor(period * READ_TURN.0.div_ceil(chunk.0)),
            turns: divisor(near),
            chunks: sizes.array_chunks,
            rows: sizes.rows,
        })
    }

    pub(super) fn with_read_turns(self, turn: Sectors) -> Raid10 {
        let chunk = 1 << self.chunk_shift;
        Raid10 { run: divisor(self.period * turn.0.div_ceil(chunk)), ..self }
    }

    /// How far from a sector of a member to the end of its far part.
    pub(super) fn part_room(&self, sector: Sector) -> Sectors {
        if self.interleaved || self.far.get() == 1 {
            return Sectors::MAX;
        }
        let part = self.stride << self.chunk_shift;
        Sectors(part - sector.0 % part)
    }

    pub(super) fn grown(&self, member_sectors: Sectors) -> Option<Result<Raid10, GeometryError>> {
        if self.far.get() > 1 && !self.interleaved {
            return None;
        }
        let grown = Raid10::new(self.layout, self.chunk(), member_sectors);
        Some(grown.map(|grown| Raid10 { run: self.run, ..grown }))
    }

    #[inline]
    pub(super) fn sectors(&self) -> Sectors {
        Sectors(self.chunks << self.chunk_shift)
    }

    #[inline]
    pub(super) fn members(&self) -> u16 {
        self.width.get() as u16
    }

    #[inline]
    pub(super) fn copies(&self) -> u16 {
        (self.near * self.far.get()) as u16
    }

    #[inline]
    pub(super) fn chunk(&self) -> Sectors {
        Sectors(1 << self.chunk_shift)
    }

    pub(super) fn sectors_on_member(&self) -> Sectors {
        Sectors(self.rows << self.chunk_shift)
    }

    /// Number of the chunk of `sector`, and where in the chunk it is.
    #[inline]
    fn chunk_of(&self, sector: Sector) -> (u64, u64) {
        (sector.0 >> self.chunk_shift, sector.0 & (self.chunk().0 - 1))
    }

    #[inline]
    pub(super) fn room(&self, sector: Sector) -> Sectors {
        Sectors(self.chunk().0 - self.chunk_of(sector).1)
    }

    /// The start of the row of copy `j` of `line`.
    #[inline]
    fn row_start(&self, line: u64, j: u64) -> u64 {
        (line * self.pitch + j * self.stride) << self.chunk_shift
    }

    #[inline]
    pub(super) fn places(&self, sector: Sector, out: &mut Places) {
        let (chunk, within) = self.chunk_of(sector);
        let far = self.far.get();
        let (mut line, mut column) = self.width.divide(chunk * self.near);
        for _ in 0..self.near {
            let members = &self.far_copies.members[(column * far) as usize..][..far as usize];
            for (j, member) in (0..far).zip(members) {
                out.push(Place { member: *member, sector: Sector(self.row_start(line, j) + within) });
            }
            column += 1;
            if column == self.width.get() {
                (line, column) = (line + 1, 0);
            }
        }
    }

    #[inline]
    pub(super) fn place(&self, sector: Sector, copy: usize) -> Place {
        let (chunk, within) = self.chunk_of(sector);
        let (near, j) = self.far.divide(copy as u64);
        let (line, column) = self.width.divide(chunk * self.near + near);
        let member = self.far_copies.members[(column * self.far.get() + j) as usize];
        Place { member, sector: Sector(self.row_start(line, j) + within) }
    }

    #[inline]
    pub(super) fn preferred_copy(&self, sector: Sector) -> usize {
        if self.near == 1 {
            return 0;
        }
        let (run, _) = self.run.divide(sector.0 >> self.chunk_shift);
        let (_, near) = self.turns.divide(run);
        (near * self.far.get()) as usize
    }

    pub(super) fn ranges(&self, sector: Sector, nr: Sectors, each: &mut dyn FnMut(Place, Sectors)) {
        let reach = Reach::new(self, sector, nr);
        let columns = self.far_copies.columns.chunks_exact(self.far.get() as usize);
        for (member, columns) in (0..).zip(columns) {
            let mut pieces = Pieces { member, start: 0, end: 0, each };
            if self.interleaved {
                reach.interleaved_rows(columns, &mut pieces);
            } else {
                reach.rows_by_part(columns, &mut pieces);
            }
            pieces.emit();
        }
    }

    pub(super) fn to_array(&self, place: Place) -> Option<Sector> {
        let (row, within) = self.chunk_of(place.sector);
        let (line, j) = if self.interleaved {
            (row / self.pitch, row % self.pitch)
        } else {
            (row % self.stride, row / self.stride)
        };
        let column =
            self.far_copies.columns[usize::from(place.member) * self.far.get() as usize + j as usize];
        let chunk = (line * self.width.get() + u64::from(column)) / self.near;
        (chunk < self.chunks).then_some(Sector((chunk << self.chunk_shift) + within))
    }

    pub(super) fn has_all_data(&self, present: &dyn Fn(u16) -> bool) -> bool {
        let copies = 0..usize::from(self.copies());
        let readable = |chunk: u64| {
            let sector = Sector(chunk << self.chunk_shift);
            copies.clone().any(|copy| present(self.place(sector, copy).member))
        };
        (0..self.period.min(self.chunks)).all(readable)
    }
}

/// What a range of the array touches, as positions.
struct Reach<'a> {
    of: &'a Raid10,
    /// First and last position, and the line and column of each.
    first: u64,
    last: u64,
    first_line: u64,
    first_column: u64,
    last_line: u64,
    last_column: u64,
    /// Where in the first chunk it begins, and where in the last one it ends.
    head: u64,
    tail: u64,
}

impl<'a> Reach<'a> {
    fn new(of: &'a Raid10, sector: Sector, nr: Sectors) -> Reach<'a> {
        let (first_chunk, head) = of.chunk_of(sector);
        let (last_chunk, last_within) = of.chunk_of(Sector(sector.0 + nr.0 - 1));
        let (first, last) = (first_chunk * of.near, last_chunk * of.near + of.near - 1);
        let (first_line, first_column) = of.width.divide(first);
        let (last_line, last_column) = of.width.divide(last);
        Reach {
            of,
            first,
            last,
            first_line,
            first_column,
            last_line,
            last_column,
            head,
            tail: last_within + 1,
        }
    }

    /// The lines that it touches in a column: the first one, and one past the last.
    fn lines(&self, column: u64) -> (u64, u64) {
        let from = self.first_line + u64::from(column < self.first_column);
        let to = self.last_line + u64::from(column <= self.last_column);
        (from, to)
    }

    /// Adds copy `j` of the lines `from..to` of a column, which lie in one piece.
    fn add(&self, column: u64, j: u64, (from, to): (u64, u64), pieces: &mut Pieces<'_>) {
        if from >= to {
            return;
        }
        let position = |line: u64| line * self.of.width.get() + column;
        let head = if position(from) < self.first + self.of.near { self.head } else { 0 };
        let tail = if position(to - 1) + self.of.near > self.last { self.tail } else { self.of.chunk().0 };
        pieces.add(self.of.row_start(from, j) + head, self.of.row_start(to - 1, j) + tail);
    }

    /// Each far copy has a part of the member for itself.
    fn rows_by_part(&self, columns: &[u16], pieces: &mut Pieces<'_>) {
        for (j, column) in (0..).zip(columns) {
            let column = u64::from(*column);
            self.add(column, j, self.lines(column), pieces);
        }
    }

    /// The rows of all copies of a line are followed by those of the next line.
    fn interleaved_rows(&self, columns: &[u16], pieces: &mut Pieces<'_>) {
        let line = |line: u64, pieces: &mut Pieces<'_>| {
            for (j, column) in (0..).zip(columns) {
                let (from, to) = self.lines(u64::from(*column));
                self.add(u64::from(*column), j, (from.max(line), to.min(line + 1)), pieces);
            }
        };
        line(self.first_line, pieces);
        if self.first_line + 1 < self.last_line {
            // Near copies do not cross lines here (there is no such layout), so no partial chunk is in between.
            pieces.add(self.of.row_start(self.first_line + 1, 0), self.of.row_start(self.last_line, 0));
        }
        if self.first_line < self.last_line {
            line(self.last_line, pieces);
        }
    }
}

/// Puts pieces of a member together that touch.
struct Pieces<'a> {
    member: u16,
    start: u64,
    end: u64,
    each: &'a mut dyn FnMut(Place, Sectors),
}

impl Pieces<'_> {
    /// Adds `start..end`, which lies behind what was added before.
    fn add(&mut self, start: u64, end: u64) {
        debug_assert!(start < end && self.end <= start);
        if start != self.end {
            self.emit();
            self.start = start;
        }
        self.end = end;
    }

    /// Hands on what there is.
    fn emit(&mut self) {
        if self.start < self.end {
            let place = Place { member: self.member, sector: Sector(self.start) };
            (self.each)(place, Sectors(self.end - self.start));
        }
    }
}
