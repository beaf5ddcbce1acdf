//! Where a server may be killed, as far as the marks of requests in flight are concerned: after each of its stores to them and to the
//! ring. Tests look there; otherwise this is nothing.

/// Something was stored.
#[inline(always)]
pub(super) fn stored() {
    #[cfg(test)]
    watched::stored();
}

#[cfg(test)]
pub(super) mod watched {
    use std::cell::RefCell;

    type Watcher = Box<dyn FnMut()>;

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    pub(super) fn stored() {
        WATCHER.with_borrow_mut(|watcher| watcher.iter_mut().for_each(|watcher| watcher()));
    }

    /// Calls `watcher` after each store of `act`, on this thread.
    pub(crate) fn watch<T>(watcher: impl FnMut() + 'static, act: impl FnOnce() -> T) -> T {
        let before = WATCHER.replace(Some(Box::new(watcher)));
        let result = act();
        WATCHER.set(before);
        result
    }
}
