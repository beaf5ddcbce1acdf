//! What a server offers: volumes under names, and what clients are told of them.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

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
/// can be taken out, or withheld, without anybody noticing.
#[derive(Clone, Debug)]
pub struct Exports {
    all: Arc<Mutex<Vec<Entry>>>,
    closed: Arc<OnceLock<Hook>>,
}

/// An export that somebody has opened, as it was then.
#[derive(Clone, Debug)]
pub struct Opened {
    export: Arc<Export>,
    /// Dropped after the export: whoever is told finds it closed.
    _told: Told,
}

impl Opened {
    /// Whether both are one export.
    pub fn is(&self, other: &Opened) -> bool {
        Arc::ptr_eq(&self.export, &other.export)
    }
}

impl Deref for Opened {
    type Target = Export;
    #[inline]
    fn deref(&self) -> &Export {
        &self.export
    }
}

/// What is called whenever an export has been closed.
struct Hook(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

#[derive(Clone, Debug)]
struct Told(Arc<OnceLock<Hook>>);

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(hook) = self.0.get() {
            (hook.0)();
        }
    }
}

/// An export, and what clients may still have open that was in its place before.
#[derive(Debug)]
struct Entry {
    now: Arc<Export>,
    before: Vec<Weak<Export>>,
    /// Nobody can open it at present.
    is_withheld: bool,
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
        let exports = Exports { all: Arc::default(), closed: Arc::default() };
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
        all.push(Entry { now: Arc::new(export), before: Vec::new(), is_withheld: false });
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

    /// Lets nobody open these any more, or open them again; clients that have them open keep them.
    pub fn withhold(&self, names: &[String], withheld: bool) {
        for known in self.all().iter_mut().filter(|known| names.contains(&known.now.name)) {
            known.is_withheld = withheld;
        }
    }

    /// Withholds exports that nobody has open: all of them, or none.
    ///
    /// # Errors
    ///
    /// Clients have one of them open: which, and how many.
    pub fn withhold_unused(&self, names: &[String]) -> Result<(), (String, ExportsError)> {
        let mut all = self.all();
        let meant = |known: &Entry| names.contains(&known.now.name);
        let in_use = all.iter().find(|known| meant(known) && known.clients() > 0);
        if let Some(known) = in_use {
            return Err((known.now.name.clone(), ExportsError::InUse { clients: known.clients() }));
        }
        all.iter_mut().filter(|known| meant(known)).for_each(|known| known.is_withheld = true);
        Ok(())
    }

    /// Has `hook` called whenever a client has closed an export, on whichever thread that is: it must not wait. Only the first one counts.
    pub fn when_closed(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.closed.set(Hook(Box::new(hook)));
    }

    /// The export of that name.
    pub fn find(&self, name: &[u8]) -> Option<Opened> {
        let all = self.all();
        let found = if name.is_empty() {
            all.first()
        } else {
            all.iter().find(|known| known.now.name.as_bytes() == name)
        };
        let found = found.filter(|known| !known.is_withheld)?;
        Some(Opened { export: found.now.clone(), _told: Told(self.closed.clone()) })
    }

    /// Those that LIST names: name and description. Whoever only asks for the list has no share of them.
    pub fn listed(&self) -> Vec<(String, String)> {
        let all = self.all();
        let open = all.iter().filter(|known| !known.is_withheld).take(Exports::LISTED_MAX);
        open.map(|known| (known.now.name.clone(), known.now.description.clone())).collect()
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

    #[test]
    fn what_is_withheld_stays_with_those_who_have_it_and_nobody_else_gets_it() {
        let exports = Exports::new(vec![export("a", 1), export("b", 2)]).unwrap();
        let both = ["a".to_owned(), "b".to_owned()];
        let open = exports.find(b"b").unwrap();
        let in_use = ("b".to_owned(), ExportsError::InUse { clients: 1 });
        assert_eq!(exports.withhold_unused(&both).unwrap_err(), in_use);
        assert!(exports.find(b"a").is_some(), "all or none");
        exports.withhold(&both[1..], true);
        assert!(exports.find(b"b").is_none() && open.size == 2);
        assert_eq!(exports.withhold_unused(&both).unwrap_err(), in_use);
        drop(open);
        exports.withhold_unused(&both).unwrap();
        assert!(exports.find(b"a").is_none() && exports.find(b"").is_none() && exports.listed().is_empty());
        // What takes its place is withheld like it.
        exports.replace("a", export("a", 3)).unwrap();
        assert!(exports.find(b"a").is_none());
        exports.withhold(&both, false);
        assert_eq!([exports.find(b"").unwrap().size, exports.find(b"b").unwrap().size], [3, 2]);
    }

    #[test]
    fn whoever_is_told_that_an_export_was_closed_finds_it_closed() {
        let exports = Exports::new(vec![export("a", 1)]).unwrap();
        let (again, found) = (exports.clone(), Arc::new(Mutex::new(Vec::new())));
        let told = found.clone();
        exports.when_closed(move || told.lock().unwrap().push(again.withhold_unused(&["a".into()]).is_ok()));
        let (first, second) = (exports.find(b"a").unwrap(), exports.find(b"a").unwrap());
        assert!(first.is(&second));
        drop(first);
        drop(second);
        assert_eq!(*found.lock().unwrap(), [false, true]);
    }
}
