//! Guests that tests hand on to each other.
//!
//! A script keeps one of the host's processors busy, or waits while what is tested works outside of the guest. So as many guests run as
//! tests run at once, and a boot serves all tests that come one after the other.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::guest::Guest;

/// Guests that nobody holds; the one that was held last is the next to be taken.
static SPARE: Mutex<Vec<Guest>> = Mutex::new(Vec::new());

/// A guest that nobody else uses while it is held. It may have booted for who held it before.
#[derive(Debug)]
pub struct Shared {
    /// Until it is handed back.
    guest: Option<Guest>,
}

impl Shared {
    /// A spare one, or one more.
    pub(crate) fn take() -> Shared {
        Shared { guest: Some(spare().pop().unwrap_or_default()) }
    }
}

impl Deref for Shared {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        self.guest.as_ref().expect("it is held")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        spare().extend(self.guest.take());
    }
}

/// Taking and handing back leave it whole, whatever else a thread dies of.
fn spare() -> MutexGuard<'static, Vec<Guest>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_holder_has_one_of_its_own_and_hands_it_on() {
        let (first, second) = (Shared::take(), Shared::take());
        assert_eq!(spare().len(), 0);
        drop(first);
        drop(second);
        assert_eq!(spare().len(), 2, "both are there for the next");
        let third = Shared::take();
        assert_eq!(spare().len(), 1, "which is no new one");
        drop(third);
    }
}
