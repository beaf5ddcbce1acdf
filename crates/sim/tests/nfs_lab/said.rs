//! What is logged, by the thread that logs it: each test is one.

use std::cell::RefCell;
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Keep;

impl Log for Keep {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        SAID.with_borrow_mut(|said| said.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// Keeps what this thread logs from now on.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Keep).expect("there is no other in these tests");
        log::set_max_level(LevelFilter::Info);
    });
    said();
}

/// What this thread has logged since it was asked last.
pub fn said() -> Vec<String> {
    SAID.take()
}
