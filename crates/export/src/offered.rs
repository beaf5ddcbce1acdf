//! What a server offers by one of its ways: things under names that come and go, and who has which of them open.
//!
//! Invariant: whoever has opened something has a share of it, taken while the list was held; so what nobody else has a share of can be
//! taken out, or withheld, without anybody noticing. Whoever comes while it is withheld for a moment only is put off, not refused.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use blockwork_engine::Nanos;

/// How long whoever is told [`NotOpened::NotNow`] rests before he asks again. What is done to a volume meanwhile takes milliseconds, where
/// clients of it have the disks busy some hundred.
pub const ASK_AGAIN: Nanos = Nanos::millis(2);

/// Something that is offered.
pub trait Named {
    /// Who opens it, in words.
    const OPENER: &'static str;

    /// Under which name it is found.
    fn name(&self) -> &str;

    /// Whether it can be called so.
    ///
    /// # Errors
    ///
    /// Why not.
    fn check_name(&self) -> Result<(), OfferedError>;
}

/// Why something cannot be offered, or be taken back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferedError {
    /// A name is used twice.
    #[error("two exports are called {0:?}; clients could not tell them apart: rename one")]
    Duplicate(String),
    /// It cannot be called so; why.
    #[error("{0}")]
    Name(String),
    /// Somebody has it open.
    #[error("{clients} {opener}{} it open", if *.clients == 1 { " has" } else { "s have" })]
    InUse {
        /// How many.
        clients: usize,
        /// What one of them is called.
        opener: &'static str,
    },
}

/// All that is offered, in order. Clones share it.
#[derive(Debug)]
pub struct Offered<T> {
    all: Arc<Mutex<List<T>>>,
    /// How often the list has changed.
    version: Arc<AtomicU64>,
    closed: Arc<OnceLock<Hook>>,
}

impl<T> Clone for Offered<T> {
    fn clone(&self) -> Self {
        Offered { all: self.all.clone(), version: self.version.clone(), closed: self.closed.clone() }
    }
}

impl<T> Default for Offered<T> {
    fn default() -> Self {
        Offered { all: Arc::default(), version: Arc::default(), closed: Arc::default() }
    }
}

#[derive(Debug)]
struct List<T> {
    entries: Vec<Entry<T>>,
    /// The key of the next one.
    next: u64,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List { entries: Vec::new(), next: 0 }
    }
}

/// One of them, and what may still be open that was in its place before.
#[derive(Debug)]
struct Entry<T> {
    key: u64,
    now: Arc<T>,
    before: Vec<Weak<T>>,
    withheld: Withheld,
}

/// Whether it can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withheld {
    No,
    /// Something is being done to it that nobody may see; it can be opened, or is gone, in a moment.
    ForNow,
    /// Nobody can, until that is said anew.
    Yes,
}

/// Why something was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// There is none, or it is withheld.
    None,
    /// It cannot be opened just now: ask again in a moment.
    NotNow,
}

impl<T> Entry<T> {
    fn clients(&self) -> usize {
        Arc::strong_count(&self.now) - 1 + self.before.iter().map(Weak::strong_count).sum::<usize>()
    }
}

impl<T: Named> Entry<T> {
    fn check_unused(&self) -> Result<(), OfferedError> {
        match self.clients() {
            0 => Ok(()),
            clients => Err(OfferedError::InUse { clients, opener: T::OPENER }),
        }
    }
}

/// What somebody has opened, as it was then.
#[derive(Debug)]
pub struct Opened<T> {
    opened: Arc<T>,
    /// Dropped after it: whoever is told finds it closed.
    _told: Told,
}

impl<T> Clone for Opened<T> {
    fn clone(&self) -> Self {
        Opened { opened: self.opened.clone(), _told: self._told.clone() }
    }
}

impl<T> Opened<T> {
    /// Whether both are one.
    pub fn is(&self, other: &Opened<T>) -> bool {
        Arc::ptr_eq(&self.opened, &other.opened)
    }
}

impl<T> Deref for Opened<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.opened
    }
}

/// One of them, as who looks at the list sees it.
#[derive(Debug)]
pub struct Seen<'a, T> {
    /// No other one ever had or gets this.
    pub key: u64,
    /// It.
    pub one: &'a T,
    /// Nobody can open it, and that does not pass in a moment.
    pub is_withheld: bool,
}

/// What is called whenever something has been closed.
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

impl<T: Named> Offered<T> {
    /// These, in their order.
    ///
    /// # Errors
    ///
    /// As [`Offered::add`].
    pub fn of(all: impl IntoIterator<Item = T>) -> Result<Offered<T>, OfferedError> {
        let offered = Offered::default();
        all.into_iter().try_for_each(|one| offered.add(one))?;
        Ok(offered)
    }

    fn list(&self) -> MutexGuard<'_, List<T>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list, to be changed.
    fn list_mut(&self) -> MutexGuard<'_, List<T>> {
        let list = self.list();
        // Whoever finds it looks at the list next, and that is held.
        self.version.fetch_add(1, Ordering::Release);
        list
    }

    /// Another one whenever the list has changed.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// One more.
    ///
    /// # Errors
    ///
    /// Its name is taken, or none for this.
    pub fn add(&self, one: T) -> Result<(), OfferedError> {
        let mut list = self.list_mut();
        list.check_name(&one)?;
        let key = list.next;
        list.next += 1;
        list.entries.push(Entry { key, now: Arc::new(one), before: Vec::new(), withheld: Withheld::No });
        Ok(())
    }

    /// Another one in the place of `name`, for who opens it from now on.
    ///
    /// # Errors
    ///
    /// Its name is that of a third one, or none for this.
    pub fn replace(&self, name: &str, one: T) -> Result<(), OfferedError> {
        let mut list = self.list_mut();
        let Some(at) = list.entries.iter().position(|known| known.now.name() == name) else { return Ok(()) };
        if one.name() != name {
            list.check_name(&one)?;
        }
        let entry = &mut list.entries[at];
        let before = std::mem::replace(&mut entry.now, Arc::new(one));
        entry.before.retain(|known| known.strong_count() > 0);
        entry.before.push(Arc::downgrade(&before));
        Ok(())
    }

    /// Takes one out that nobody has open; without effect where there is none of that name.
    ///
    /// # Errors
    ///
    /// Somebody has it open.
    pub fn remove(&self, name: &str) -> Result<(), OfferedError> {
        let mut list = self.list_mut();
        let Some(at) = list.entries.iter().position(|known| known.now.name() == name) else { return Ok(()) };
        list.entries[at].check_unused()?;
        list.entries.remove(at);
        Ok(())
    }

    /// Lets nobody open these any more, or open them again; who has them open keeps them.
    pub fn withhold(&self, names: &[String], withheld: bool) {
        let mut list = self.list_mut();
        for known in list.entries.iter_mut().filter(|known| known.is_one_of(names)) {
            known.withheld = if withheld { Withheld::Yes } else { Withheld::No };
        }
    }

    /// Withholds what nobody has open for a moment, after which it is let go or removed: all of them, or none. Those that were not withheld
    /// before.
    ///
    /// # Errors
    ///
    /// Somebody has one of them open: which.
    pub fn withhold_unused(&self, names: &[String]) -> Result<Vec<String>, (String, OfferedError)> {
        let mut list = self.list_mut();
        for known in list.entries.iter().filter(|known| known.is_one_of(names)) {
            known.check_unused().map_err(|error| (known.now.name().to_owned(), error))?;
        }
        let mut newly = Vec::new();
        for known in list.entries.iter_mut().filter(|known| known.is_one_of(names)) {
            if known.withheld == Withheld::No {
                known.withheld = Withheld::ForNow;
                newly.push(known.now.name().to_owned());
            }
        }
        Ok(newly)
    }

    /// Has `hook` called whenever something has been closed, on whichever thread that is: it must not wait. Only the first one counts.
    pub fn when_closed(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.closed.set(Hook(Box::new(hook)));
    }

    /// Opens the first that is wanted.
    ///
    /// # Errors
    ///
    /// There is none, or it is withheld, for a moment or for longer.
    pub fn open(&self, is_wanted: impl Fn(u64, &T) -> bool) -> Result<Opened<T>, NotOpened> {
        let list = self.list();
        let found = list.entries.iter().find(|known| is_wanted(known.key, &known.now));
        let found = found.ok_or(NotOpened::None)?;
        match found.withheld {
            Withheld::No => Ok(Opened { opened: found.now.clone(), _told: Told(self.closed.clone()) }),
            Withheld::ForNow => Err(NotOpened::NotNow),
            Withheld::Yes => Err(NotOpened::None),
        }
    }

    /// What is made of them all. Whoever looks so has no share of them.
    pub fn look<R>(&self, act: impl FnOnce(&mut dyn Iterator<Item = Seen<'_, T>>) -> R) -> R {
        let list = self.list();
        let seen = |known| {
            let Entry { key, now, withheld, .. }: &Entry<T> = known;
            Seen { key: *key, one: &**now, is_withheld: *withheld == Withheld::Yes }
        };
        act(&mut list.entries.iter().map(seen))
    }
}

impl<T: Named> Entry<T> {
    fn is_one_of(&self, names: &[String]) -> bool {
        names.iter().any(|name| name == self.now.name())
    }
}

impl<T: Named> List<T> {
    /// Whether one may be called so beside the others.
    fn check_name(&self, one: &T) -> Result<(), OfferedError> {
        one.check_name()?;
        if self.entries.iter().any(|known| known.now.name() == one.name()) {
            return Err(OfferedError::Duplicate(one.name().to_owned()));
        }
        Ok(())
    }
}
