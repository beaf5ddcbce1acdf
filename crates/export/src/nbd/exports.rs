//! What a server offers: volumes under names, and what clients are told of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use blockwork_engine::{Volume, VolumeId};
use blockwork_format::nbd::{NAME_MAX, PAYLOAD_MAX, transmission_flags as flags};

/// One export: a volume under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name for clients.
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
    /// The volume.
    pub volume: VolumeId,
    /// Size, bytes.
    pub size: u64,
    /// Transmission flags, but for those that depend on what was agreed upon with a client.
    pub flags: u16,
    /// What a client should align to for speed, bytes, a power of two.
    pub preferred_block: u32,
    /// Smallest unit of the volume, bytes, a power of two: what is not aligned to it is read, modified and written.
    pub logical_block: u32,
}

impl Export {
    /// The export of `volume` under its own name.
    pub fn new(id: VolumeId, volume: &Volume, read_only: bool) -> Export {
        let limits = volume.limits();
        let read_only = read_only || volume.read_only || limits.read_only;
        let always = flags::HAS_FLAGS | flags::SEND_FLUSH | flags::CAN_MULTI_CONN | flags::SEND_CACHE;
        let writable = flags::SEND_FUA | flags::SEND_WRITE_ZEROES | flags::SEND_FAST_ZERO;
        let when = |condition: bool, bits: u16| if condition { bits } else { 0 };
        Export {
            name: volume.name.clone(),
            description: String::new(),
            volume: id,
            size: volume.sectors().bytes(),
            flags: always
                | if read_only { flags::READ_ONLY } else { writable }
                | when(!read_only && limits.discards(), flags::SEND_TRIM)
                | when(limits.rotational, flags::ROTATIONAL),
            preferred_block: limits
                .physical_block_size
                .max(limits.io_min)
                .max(4096)
                .next_power_of_two()
                .min(PAYLOAD_MAX),
            logical_block: limits.logical_block_size,
        }
    }

    /// Whether it has a transmission flag.
    #[inline]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// All exports of a server, in order: the first is the default one, which clients get for the empty name. Clones share them, and they
/// may come and go: what a client has opened stays what it was when it was opened.
///
/// Invariant: whoever has opened an export has a share of it, taken while the list was held; so one that nobody else has a share of
/// can be taken out without anybody noticing.
#[derive(Clone, Debug)]
pub struct Exports {
    all: Arc<Mutex<Vec<Entry>>>,
}

/// An export, and what clients may still have open that was in its place before.
#[derive(Debug)]
struct Entry {
    now: Arc<Export>,
    before: Vec<Weak<Export>>,
}

impl Entry {
    fn clients(&self) -> usize {
        Arc::strong_count(&self.now) - 1 + self.before.iter().map(Weak::strong_count).sum::<usize>()
    }
}

/// Why a set of exports was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportsError {
    /// Nothing to serve.
    #[error("an NBD server needs at least one export; name a volume")]
    Empty,
    /// A name is used twice.
    #[error("two exports are called {0:?}; clients could not tell them apart: rename one")]
    Duplicate(String),
    /// A name cannot be sent.
    #[error("an export's name has {0} bytes, NBD allows {NAME_MAX}")]
    NameTooLong(usize),
    /// Clients have it open.
    #[error("{clients} NBD client{} it open", if *.clients == 1 { " has" } else { "s have" })]
    InUse {
        /// How many.
        clients: usize,
    },
}

impl Exports {
    /// Most entries that LIST answers with; more exports than that can be opened by name.
    pub const LISTED_MAX: usize = 1024;

    /// Checks the names.
    pub fn new(all: Vec<Export>) -> Result<Exports, ExportsError> {
        if all.is_empty() {
            return Err(ExportsError::Empty);
        }
        let exports = Exports { all: Arc::default() };
        for export in all {
            exports.add(export)?;
        }
        Ok(exports)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    ///
    /// # Errors
    ///
    /// Its name is taken, or cannot be sent.
    pub fn add(&self, export: Export) -> Result<(), ExportsError> {
        let mut all = self.all();
        check_name(&export.name, &all)?;
        all.push(Entry { now: Arc::new(export), before: Vec::new() });
        Ok(())
    }

    /// Another one in the place of `name`, for clients that come from now on.
    ///
    /// # Errors
    ///
    /// Its name is that of a third one, or cannot be sent.
    pub fn replace(&self, name: &str, export: Export) -> Result<(), ExportsError> {
        let mut all = self.all();
        let Some(at) = all.iter().position(|known| known.now.name == name) else { return Ok(()) };
        if export.name != name {
            check_name(&export.name, &all)?;
        }
        let entry = &mut all[at];
        let before = std::mem::replace(&mut entry.now, Arc::new(export));
        entry.before.retain(|known| known.strong_count() > 0);
        entry.before.push(Arc::downgrade(&before));
        Ok(())
    }

    /// Takes one out that nobody has open; without effect where there is none of that name.
    ///
    /// # Errors
    ///
    /// Clients have it open.
    pub fn remove(&self, name: &str) -> Result<(), ExportsError> {
        let mut all = self.all();
        let Some(at) = all.iter().position(|known| known.now.name == name) else { return Ok(()) };
        let clients = all[at].clients();
        if clients > 0 {
            return Err(ExportsError::InUse { clients });
        }
        all.remove(at);
        Ok(())
    }

    /// The export of that name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Export>> {
        let all = self.all();
        let found = if name.is_empty() {
            all.first()
        } else {
            all.iter().find(|known| known.now.name.as_bytes() == name)
        };
        found.map(|known| known.now.clone())
    }

    /// Those that LIST names.
    pub fn listed(&self) -> Vec<Arc<Export>> {
        self.all().iter().take(Exports::LISTED_MAX).map(|known| known.now.clone()).collect()
    }
}

/// Whether an export may be called so beside the others.
fn check_name(name: &str, others: &[Entry]) -> Result<(), ExportsError> {
    if name.len() > NAME_MAX {
        return Err(ExportsError::NameTooLong(name.len()));
    }
    if others.iter().any(|known| known.now.name == name) {
        return Err(ExportsError::Duplicate(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An export with everything.
    pub(crate) fn export(name: &str, size: u64) -> Export {
        Export {
            name: name.to_owned(),
            description: "for tests".to_owned(),
            volume: VolumeId(0),
            size,
            flags: flags::HAS_FLAGS
                | flags::SEND_FLUSH
                | flags::SEND_FUA
                | flags::SEND_TRIM
                | flags::SEND_WRITE_ZEROES
                | flags::SEND_FAST_ZERO
                | flags::CAN_MULTI_CONN
                | flags::SEND_CACHE,
            preferred_block: 4096,
            logical_block: 512,
        }
    }

    #[test]
    fn the_empty_name_is_the_first_export() {
        let exports = Exports::new(vec![export("a", 1), export("b", 2)]).unwrap();
        assert_eq!(exports.find(b"").unwrap().name, "a");
        assert_eq!(exports.find(b"b").unwrap().size, 2);
        assert!(exports.find(b"c").is_none());
    }

    #[test]
    fn names_that_clients_could_not_use_are_refused() {
        assert_eq!(Exports::new(vec![]).unwrap_err(), ExportsError::Empty);
        let twice = vec![export("a", 1), export("a", 2)];
        assert_eq!(Exports::new(twice).unwrap_err(), ExportsError::Duplicate("a".into()));
        let long = vec![export(&"x".repeat(NAME_MAX + 1), 1)];
        assert_eq!(Exports::new(long).unwrap_err(), ExportsError::NameTooLong(NAME_MAX + 1));
    }

    #[test]
    fn exports_come_and_go_and_stay_while_they_are_open() {
        let exports = Exports::new(vec![export("a", 1)]).unwrap();
        let of_a_session = exports.clone();
        exports.add(export("b", 2)).unwrap();
        assert_eq!(exports.add(export("b", 3)).unwrap_err(), ExportsError::Duplicate("b".into()));
        let open = of_a_session.find(b"b").unwrap();
        exports.replace("b", export("c", 3)).unwrap();
        assert_eq!(exports.replace("c", export("a", 3)).unwrap_err(), ExportsError::Duplicate("a".into()));
        assert_eq!((open.size, of_a_session.find(b"c").unwrap().size), (2, 3));
        assert!(of_a_session.find(b"b").is_none());
        let later = of_a_session.find(b"c").unwrap();
        assert_eq!(exports.remove("c").unwrap_err(), ExportsError::InUse { clients: 2 });
        drop(later);
        assert_eq!(exports.remove("c").unwrap_err(), ExportsError::InUse { clients: 1 });
        drop(open);
        exports.remove("c").unwrap();
        assert_eq!(of_a_session.listed().len(), 1);
    }
}
