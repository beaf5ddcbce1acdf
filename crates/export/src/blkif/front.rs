//! A queue of the front end: bios into a ring, answers out of it. For whoever is the guest.
//!
//! A guest's pages are granted for each request, and the grant is taken back with the answer; or, where both ends keep
//! pages (`feature-persistent`), data is copied to and from pages that are granted once. Requests are remembered until
//! they are answered, so that a back end that comes back gets them again.

use blockwork_engine::{Bio, Done, Errno, Flags, Op};
use blockwork_format::blkif::{
    Abi, Data, Direct, INDIRECT_PAGES_MAX, Kind, PAGE_BYTES, Request, SEGMENTS_MAX, SEGMENTS_PER_PAGE,
    Segment as PageSegment, Segments as InRequest, Status, encode_segments,
};
use blockwork_memory::{Buffer, Segment, Segments, bytes_in, copy_between};
use slab::Slab;
use smallvec::SmallVec;

use super::{Access, FrontRing, GrantRef, Offers, RunAway};

const SECTOR: usize = blockwork_engine::SECTOR as usize;

/// What both ends have agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontConfig {
    /// Layout of the ring.
    pub abi: Abi,
    /// Whether data goes through pages that stay granted.
    pub persistent: bool,
    /// Most segments of an indirect request; 0: there are none.
    pub max_indirect_segments: u32,
    /// Whether the back end takes barriers: what a write with FUA becomes.
    pub barrier: bool,
}

/// Why a bio was not put into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The ring is full.
    #[error("the ring is full")]
    Full,
    /// Its data lies in more pages than a request can name.
    #[error("the data lies in {found} pages, expected at most {most}")]
    TooManySegments {
        /// Pages that it lies in.
        found: usize,
        /// What a request can name.
        most: usize,
    },
    /// Its data does not begin and end at sectors of pages.
    #[error("the data does not consist of whole sectors at multiples of 512")]
    Unaligned,
    /// The protocol, or this back end, has no such operation.
    #[error("{0:?} with these flags cannot be asked for")]
    NotSupported(Op),
}

/// What the back end did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaved {
    /// Its index.
    #[error(transparent)]
    RunAway(#[from] RunAway),
    /// It answered what was not asked.
    #[error("an answer to request {0:#x}, which is not under way")]
    Unknown(u64),
}

/// A page that is granted.
struct Granted {
    gref: GrantRef,
    page: Segment,
}

/// Pages of a request. Those of small ones need no allocation.
type Pages = SmallVec<[Granted; 2]>;

/// A request that is not answered.
struct Shadow {
    request: Request,
    cookie: u64,
    op: Op,
    data: Segments,
    pages: Pages,
    /// Those that hold the segments.
    lists: Pages,
}

/// A queue of the front end. See the module's head.
pub struct FrontQueue {
    config: FrontConfig,
    ring: FrontRing,
    offers: Box<dyn Offers>,
    shadows: Slab<Shadow>,
    /// Pages that stay granted and are not in use; the one that was used last is used first.
    spare: Vec<Granted>,
    /// Segments of the request at hand.
    segments: Vec<PageSegment>,
}

impl FrontQueue {
    /// A queue over a new ring.
    pub fn new(config: FrontConfig, ring: FrontRing, offers: Box<dyn Offers>) -> FrontQueue {
        let shadows = Slab::with_capacity(ring.slots() as usize);
        FrontQueue { config, ring, offers, shadows, spare: Vec::new(), segments: Vec::new() }
    }

    /// Requests that fit.
    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Whether another bio fits.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ring.room() > 0
    }

    /// Requests that are not answered.
    pub fn under_way(&self) -> usize {
        self.shadows.len()
    }

    /// Pages that a bio's data may lie in.
    pub fn max_segments(&self) -> usize {
        (self.config.max_indirect_segments as usize).max(SEGMENTS_MAX)
    }

    /// Puts a bio into the ring. The back end sees it after [`FrontQueue::publish`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn submit(&mut self, cookie: u64, bio: Bio) -> Result<(), Refused> {
        if !self.has_room() {
            return Err(Refused::Full);
        }
        let direct = match bio.op {
            Op::Read => Direct::Read,
            Op::Write if !bio.flags.has(Flags::FUA) => Direct::Write,
            Op::Write if self.config.barrier => Direct::Barrier,
            Op::Flush => Direct::Flush,
            Op::Discard => return self.discard(cookie, bio),
            Op::Write | Op::WriteZeroes => return Err(Refused::NotSupported(bio.op)),
        };
        self.segments.clear();
        let pages = if self.config.persistent { self.copied(&bio)? } else { self.granted(&bio)? };
        let mut lists = Pages::new();
        let kind = match (InRequest::new(&self.segments), direct) {
            (Some(segments), direct) => Kind::Direct(direct, segments),
            (None, Direct::Read) => self.indirect(Data::Read, &mut lists),
            (None, _) => self.indirect(Data::Write, &mut lists),
        };
        self.put(Shadow {
            request: Request { id: 0, handle: 0, sector: bio.sector.0, kind },
            cookie,
            op: bio.op,
            data: bio.data,
            pages,
            lists,
        });
        Ok(())
    }

    fn discard(&mut self, cookie: u64, bio: Bio) -> Result<(), Refused> {
        let kind = Kind::Discard { nr_sectors: bio.nr.0, secure: false };
        let request = Request { id: 0, handle: 0, sector: bio.sector.0, kind };
        let (pages, lists) = (Pages::new(), Pages::new());
        self.put(Shadow { request, cookie, op: bio.op, data: bio.data, pages, lists });
        Ok(())
    }

    fn put(&mut self, shadow: Shadow) {
        let entry = self.shadows.vacant_entry();
        let request = Request { id: entry.key() as u64, ..shadow.request };
        self.ring.put(&request);
        entry.insert(Shadow { request, ..shadow });
    }

    /// Checks how many pages a request would have to name. With a barrier, only what fits the request itself.
    fn check(&self, bio: &Bio, found: usize) -> Result<(), Refused> {
        let most = if bio.flags.has(Flags::FUA) { SEGMENTS_MAX } else { self.max_segments() };
        if found > most { Err(Refused::TooManySegments { found, most }) } else { Ok(()) }
    }

    /// Grants the pages that the data lies in.
    fn granted(&mut self, bio: &Bio) -> Result<Pages, Refused> {
        let mut count = 0;
        for segment in &bio.data {
            let (start, end) = (segment.offset(), segment.offset() + segment.len());
            if start % SECTOR != 0 || end % SECTOR != 0 {
                return Err(Refused::Unaligned);
            }
            count += end.div_ceil(PAGE_BYTES) - start / PAGE_BYTES;
        }
        self.check(bio, count)?;
        // The back end writes to what it reads into.
        let access = if bio.op == Op::Read { Access::Write } else { Access::Read };
        let mut pages = Pages::new();
        for segment in &bio.data {
            let mut at = segment.offset();
            let end = at + segment.len();
            while at < end {
                let start = at / PAGE_BYTES * PAGE_BYTES;
                let stop = end.min(start + PAGE_BYTES);
                let page = Segment::new(segment.buffer().clone(), start, PAGE_BYTES);
                let gref = self.offers.grant(page.clone(), access);
                let (first_sect, last_sect) = (sector_of(at - start), sector_of(stop - start) - 1);
                self.segments.push(PageSegment { gref, first_sect, last_sect });
                pages.push(Granted { gref, page });
                at = stop;
            }
        }
        Ok(pages)
    }

    /// Takes pages that stay granted, with a copy of what is to be written.
    fn copied(&mut self, bio: &Bio) -> Result<Pages, Refused> {
        let mut left = bytes_in(&bio.data);
        self.check(bio, left.div_ceil(PAGE_BYTES))?;
        let mut pages = Pages::new();
        while left > 0 {
            let len = left.min(PAGE_BYTES);
            let page = self.spare_page();
            self.segments.push(PageSegment { gref: page.gref, first_sect: 0, last_sect: sector_of(len) - 1 });
            pages.push(page);
            left -= len;
        }
        if bio.op == Op::Write {
            copy_between(&bio.data, &whole(&pages));
        }
        Ok(pages)
    }

    fn spare_page(&mut self) -> Granted {
        self.spare.pop().unwrap_or_else(|| {
            let page = Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
            Granted { gref: self.offers.grant(page.clone(), Access::Write), page }
        })
    }

    /// The segments at hand, in pages of their own.
    fn indirect(&mut self, data: Data, lists: &mut Pages) -> Kind {
        let segments = std::mem::take(&mut self.segments);
        let mut grefs = [0; INDIRECT_PAGES_MAX];
        for (gref, part) in grefs.iter_mut().zip(segments.chunks(SEGMENTS_PER_PAGE)) {
            let page = self.spare_page();
            page.page.write_at(0, &encode_segments(part));
            *gref = page.gref;
            lists.push(page);
        }
        let nr_segments = u16::try_from(segments.len()).expect("at most what was offered");
        self.segments = segments;
        Kind::Indirect { data, nr_segments, grefs }
    }

    /// Lets the back end know of what was put in. Whether it wants to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Appends what was answered, and asks to be notified of the next answer.
    ///
    /// # Errors
    /// The back end breaks the protocol. What it answered before is appended.
    pub fn answers(&mut self, out: &mut Vec<Done>) -> Result<(), Misbehaved> {
        loop {
            for _ in 0..self.ring.pending()? {
                let response = self.ring.take();
                let place = usize::try_from(response.id).ok().filter(|id| self.shadows.contains(*id));
                let shadow = self.shadows.remove(place.ok_or(Misbehaved::Unknown(response.id))?);
                out.push(self.answer(shadow, response.status));
            }
            if !self.ring.rearm()? {
                return Ok(());
            }
        }
    }

    fn answer(&mut self, shadow: Shadow, status: Status) -> Done {
        let Shadow { cookie, op, data, pages, lists, .. } = shadow;
        let result = match status {
            Status::Okay => Ok(()),
            Status::NotSupported => Err(Errno::EOPNOTSUPP),
            Status::Error | Status::Other(_) => Err(Errno::EIO),
        };
        self.spare.extend(lists);
        if self.config.persistent {
            if op == Op::Read && result.is_ok() {
                copy_between(&whole(&pages), &data);
            }
            self.spare.extend(pages);
        } else {
            pages.iter().for_each(|page| self.offers.end(page.gref));
        }
        Done { cookie, op, result, data }
    }

    /// Goes on with a new ring after the back end has gone and come back: what was not answered is asked again. Publish it.
    ///
    /// # Panics
    /// If the new ring is smaller than what is under way.
    pub fn reconnect(&mut self, ring: FrontRing) {
        self.ring = ring;
        self.shadows.iter().for_each(|(_, shadow)| self.ring.put(&shadow.request));
    }
}

fn whole(pages: &[Granted]) -> Segments {
    pages.iter().map(|granted| granted.page.clone()).collect()
}

/// Sectors before a place in a page.
fn sector_of(bytes: usize) -> u8 {
    u8::try_from(bytes / SECTOR).expect("a page has eight sectors")
}
