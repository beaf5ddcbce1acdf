//! What both ends publish in xenstore: decimal numbers under known names.
//!
//! Each struct here is one end's word at one step of connecting. [`Pairs`] is what it writes; reading asks for one key
//! after the other, so that whoever has a store needs no listing of it.

use super::{Abi, ring};

/// Names and values, in the order in which they are written.
pub type Pairs = Vec<(String, String)>;

/// Bits of the `info` key.
pub mod vdisk {
    /// A CD-ROM.
    pub const CDROM: u32 = 1;
    /// Its medium can be taken out.
    pub const REMOVABLE: u32 = 2;
    /// It takes no writes.
    pub const READ_ONLY: u32 = 4;
}

/// Segments of an indirect request that one end offers or uses, at most, whatever the other says: as Linux' back end has it.
const INDIRECT_OFFER_MAX: u32 = 256;
/// Queues of a device at most, whatever the other end says.
const QUEUES_MAX: u32 = 64;
/// Characters of a value that an error tells of: the other end may have written thousands, and errors are written to the store, too.
const FOUND_CHARS: usize = 64;

/// A key that does not say what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {found}, expected {expected}")]
pub struct KeyError {
    /// Its name, below the device's folder.
    pub key: String,
    /// How it begins, escaped, in quotes; or that it is missing.
    pub found: String,
    /// What it should say.
    pub expected: String,
}

impl KeyError {
    fn new(key: &str, found: Option<&str>, expected: impl Into<String>) -> KeyError {
        let found = match found {
            Some(text) => match text.char_indices().nth(FOUND_CHARS) {
                Some((end, _)) => format!("\"{}...\"", crate::escape(&text[..end])),
                None => format!("\"{}\"", crate::escape(text)),
            },
            None => "missing".to_owned(),
        };
        KeyError { key: key.to_owned(), found, expected: expected.into() }
    }
}

/// A number of `least` to `most`; `default` where there is no such key.
fn number(
    read: &mut dyn FnMut(&str) -> Option<String>,
    key: &str,
    default: Option<u64>,
    (least, most): (u64, u64),
) -> Result<u64, KeyError> {
    let text = read(key);
    let parsed = match (&text, default) {
        (None, Some(default)) => return Ok(default),
        (None, None) => None,
        (Some(text), _) => text.trim().parse::<u64>().ok(),
    };
    parsed
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| KeyError::new(key, text.as_deref(), format!("a number from {least} to {most}")))
}

fn small(
    read: &mut dyn FnMut(&str) -> Option<String>,
    key: &str,
    default: Option<u64>,
    range: (u64, u64),
) -> Result<u32, KeyError> {
    let (least, most) = (range.0, range.1.min(u32::MAX.into()));
    let number = number(read, key, default, (least, most))?;
    Ok(u32::try_from(number).expect("bounded by u32::MAX"))
}

fn flag(read: &mut dyn FnMut(&str) -> Option<String>, key: &str) -> Result<bool, KeyError> {
    number(read, key, Some(0), (0, 1)).map(|number| number == 1)
}

fn pair(key: impl Into<String>, value: impl ToString) -> (String, String) {
    (key.into(), value.to_string())
}

/// What a back end can do with discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discards {
    /// Smaller ones do nothing, bytes.
    pub granularity: u32,
    /// Where the first one may begin, bytes.
    pub alignment: u32,
}

/// What a back end can do: published before [`XenbusState::InitWait`](super::XenbusState::InitWait).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackFeatures {
    /// Largest ring: the logarithm of its pages.
    pub max_ring_page_order: u32,
    /// Most queues.
    pub max_queues: u32,
    /// Whether it takes barriers.
    pub barrier: bool,
    /// Whether it takes flushes.
    pub flush: bool,
    /// Whether it takes discards, and which. Secure ones never.
    pub discards: Option<Discards>,
    /// Whether it keeps pages mapped that come again.
    pub persistent: bool,
    /// Most segments of an indirect request; 0: it takes none.
    pub max_indirect_segments: u32,
}

impl BackFeatures {
    /// What is written.
    pub fn pairs(&self) -> Pairs {
        let mut pairs = vec![
            pair("max-ring-page-order", self.max_ring_page_order),
            pair("max-ring-pages", 1u64 << self.max_ring_page_order),
            pair("multi-queue-max-queues", self.max_queues),
            pair("feature-barrier", u8::from(self.barrier)),
            pair("feature-flush-cache", u8::from(self.flush)),
            pair("feature-discard", u8::from(self.discards.is_some())),
            pair("feature-persistent", u8::from(self.persistent)),
        ];
        if let Some(Discards { granularity, alignment }) = self.discards {
            pairs.push(pair("discard-granularity", granularity));
            pairs.push(pair("discard-alignment", alignment));
            pairs.push(pair("discard-secure", 0));
        }
        // A back end that takes no indirect requests must not have the key.
        if self.max_indirect_segments > 0 {
            pairs.push(pair("feature-max-indirect-segments", self.max_indirect_segments));
        }
        pairs
    }

    /// What a front end reads. What is not there has the value that the protocol says.
    ///
    /// # Errors
    /// A key is no number, or of no use.
    pub fn read(read: &mut dyn FnMut(&str) -> Option<String>) -> Result<BackFeatures, KeyError> {
        const ANY: (u64, u64) = (0, u32::MAX as u64);
        let order = small(read, "max-ring-page-order", Some(0), (0, 31))?;
        let pages = small(read, "max-ring-pages", Some(1), (1, 1 << 31))?;
        let discards = match flag(read, "feature-discard")? {
            false => None,
            true => Some(Discards {
                granularity: small(read, "discard-granularity", Some(512), ANY)?,
                alignment: small(read, "discard-alignment", Some(0), ANY)?,
            }),
        };
        Ok(BackFeatures {
            max_ring_page_order: order.max(pages.ilog2()).min(ring::PAGES_MAX.ilog2()),
            max_queues: small(read, "multi-queue-max-queues", Some(1), (1, ANY.1))?.min(QUEUES_MAX),
            barrier: flag(read, "feature-barrier")?,
            flush: flag(read, "feature-flush-cache")?,
            discards,
            persistent: flag(read, "feature-persistent")?,
            max_indirect_segments: small(read, "feature-max-indirect-segments", Some(0), ANY)?
                .min(INDIRECT_OFFER_MAX),
        })
    }
}

/// What the device is: published by the back end before it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackProperties {
    /// Its size, in units of 512 bytes whatever `sector_size` is.
    pub sectors: u64,
    /// [`vdisk`].
    pub info: u32,
    /// Its logical block, bytes.
    pub sector_size: u32,
    /// Its physical block, bytes.
    pub physical_sector_size: u32,
}

impl BackProperties {
    /// What is written.
    pub fn pairs(&self) -> Pairs {
        vec![
            pair("sectors", self.sectors),
            pair("info", self.info),
            pair("sector-size", self.sector_size),
            pair("physical-sector-size", self.physical_sector_size),
        ]
    }

    /// What a front end reads.
    ///
    /// # Errors
    /// A key is missing, or no number that can be.
    pub fn read(read: &mut dyn FnMut(&str) -> Option<String>) -> Result<BackProperties, KeyError> {
        let sector_size = small(read, "sector-size", Some(512), (512, 1 << 20))?;
        if !sector_size.is_power_of_two() {
            return Err(KeyError::new("sector-size", Some(&sector_size.to_string()), "a power of two"));
        }
        let default = Some(u64::from(sector_size));
        Ok(BackProperties {
            sectors: number(read, "sectors", None, (0, u64::MAX >> 9))?,
            info: small(read, "info", Some(0), (0, u32::MAX.into()))?,
            sector_size,
            physical_sector_size: small(read, "physical-sector-size", default, (512, 1 << 30))?,
        })
    }
}

/// What a back end takes of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest ring: the logarithm of its pages.
    pub max_ring_page_order: u32,
    /// Most queues.
    pub max_queues: u32,
}

/// One queue of a front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueParameters {
    /// The grants of its ring's pages, in order.
    pub ring_refs: Vec<u32>,
    /// Its event channel.
    pub event_channel: u32,
}

/// What a front end uses: published before [`XenbusState::Initialised`](super::XenbusState::Initialised).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontParameters {
    /// Layout of requests and responses.
    pub abi: Abi,
    /// Whether it uses the same pages again and again.
    pub persistent: bool,
    /// Its queues, all with rings of the same size.
    pub queues: Vec<QueueParameters>,
}

impl FrontParameters {
    /// Keys that mean something by not being there. No front end removes those that one before it has left: Linux' writes how many queues, and
    /// pages of a ring, it has only where there are several (a kernel that crashed had one for each processor, that which writes its memory down has
    /// one). So whoever lets the next one begin does.
    pub const OPTIONAL: [&'static str; 5] =
        ["multi-queue-num-queues", "ring-page-order", "num-ring-pages", "ring-ref", "feature-persistent"];

    /// What is written. With one page, or one queue, as front ends did before there were more.
    pub fn pairs(&self) -> Pairs {
        let mut pairs = vec![
            pair("protocol", self.abi.protocol()),
            pair("feature-persistent", u8::from(self.persistent)),
        ];
        let pages = self.queues.first().map_or(1, |queue| queue.ring_refs.len());
        if pages > 1 {
            pairs.push(pair("ring-page-order", pages.ilog2()));
            pairs.push(pair("num-ring-pages", pages));
        }
        let many = self.queues.len() > 1;
        if many {
            pairs.push(pair("multi-queue-num-queues", self.queues.len()));
        }
        for (number, queue) in self.queues.iter().enumerate() {
            let folder = if many { format!("queue-{number}/") } else { String::new() };
            match &*queue.ring_refs {
                [only] => pairs.push(pair(format!("{folder}ring-ref"), only)),
                refs => pairs.extend(
                    refs.iter().enumerate().map(|(n, gref)| pair(format!("{folder}ring-ref{n}"), gref)),
                ),
            }
            pairs.push(pair(format!("{folder}event-channel"), queue.event_channel));
        }
        pairs
    }

    /// What a back end reads.
    ///
    /// # Errors
    /// A key is missing, no number, or beyond what the back end offered.
    pub fn read(
        read: &mut dyn FnMut(&str) -> Option<String>,
        limits: Limits,
    ) -> Result<FrontParameters, KeyError> {
        let abi = match read("protocol") {
            None => Abi::NATIVE,
            Some(text) => Abi::from_protocol(text.trim())
                .ok_or_else(|| KeyError::new("protocol", Some(&text), "x86_64-abi, x86_32-abi or arm-abi"))?,
        };
        let persistent = flag(read, "feature-persistent")?;
        let pages = ring_pages(read, limits.max_ring_page_order)?;
        let most = u64::from(limits.max_queues.min(QUEUES_MAX));
        let count = number(read, "multi-queue-num-queues", Some(1), (1, most))?;
        let mut queues = Vec::new();
        for number in 0..count {
            let folder = if count > 1 { format!("queue-{number}/") } else { String::new() };
            queues.push(queue(read, &folder, pages)?);
        }
        Ok(FrontParameters { abi, persistent, queues })
    }
}

/// Pages of each ring; `None`: one, whose grant is not numbered.
fn ring_pages(read: &mut dyn FnMut(&str) -> Option<String>, max_order: u32) -> Result<Option<u32>, KeyError> {
    let max_order = max_order.min(ring::PAGES_MAX.ilog2());
    if read("ring-page-order").is_some() {
        let order = small(read, "ring-page-order", None, (0, max_order.into()))?;
        return Ok(Some(1 << order));
    }
    let pages = small(read, "num-ring-pages", Some(1), (1, 1 << max_order))?;
    if !pages.is_power_of_two() {
        return Err(KeyError::new("num-ring-pages", Some(&pages.to_string()), "a power of two"));
    }
    Ok((pages > 1).then_some(pages))
}

fn queue(
    read: &mut dyn FnMut(&str) -> Option<String>,
    folder: &str,
    pages: Option<u32>,
) -> Result<QueueParameters, KeyError> {
    const ANY: (u64, u64) = (0, u32::MAX as u64);
    let single = format!("{folder}ring-ref");
    // Of one page, both forms are found: Linux writes no number, others write zero.
    let numbered = match pages {
        None => false,
        Some(1) => read(&single).is_none(),
        Some(_) => true,
    };
    let mut ring_refs = Vec::new();
    for number in 0..pages.unwrap_or(1) {
        let key = if numbered { format!("{single}{number}") } else { single.clone() };
        ring_refs.push(small(read, &key, None, ANY)?);
    }
    let event_channel = small(read, &format!("{folder}event-channel"), None, ANY)?;
    Ok(QueueParameters { ring_refs, event_channel })
}
