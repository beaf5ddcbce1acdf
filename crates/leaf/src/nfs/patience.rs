//! Calls that the server has asked us to make again later (JUKEBOX, which version 4 calls DELAY; GRACE; RESOURCE).
//!
//! Each waits as long again as it has waited already, from a second up to 15: a server that needs a moment costs little more than that, and one
//! that gets its data from tape is not asked each second for hours. Whoever waits learns from the log what for, and when it is over.

use blockwork_engine::{Env, Nanos};
use blockwork_format::nfs3::Status;

use super::call::Kind;
use super::client::NfsLeaf;
use super::connection::Happening;

/// How long a call waits before it is made again, at first and at most. Also how often it is looked for those whose time has come, which is
/// the first.
const PAUSE_MIN: Nanos = Nanos::secs(1);
const PAUSE_MAX: Nanos = Nanos::secs(15);
/// How long a server is waited for without a word about it.
const QUIET: Nanos = Nanos::secs(10);
/// How long until it is said again.
const SAID_AGAIN: Nanos = Nanos::secs(300);

/// What is known of the calls that wait.
#[derive(Default)]
pub(super) struct Patience {
    /// Those that are not made again yet: until when, and which.
    calls: Vec<(Nanos, u32)>,
    /// When it was said last that the server asks for it; `None`: not since it did all that it was asked.
    said: Option<Nanos>,
}

impl Patience {
    /// A call is not wanted any more.
    pub(super) fn forget(&mut self, xid: u32) {
        self.calls.retain(|(_, waits)| *waits != xid);
    }
}

impl NfsLeaf {
    /// Makes a call again after a while; `began`: since when the server asks for patience with it.
    pub(super) fn be_patient(
        &mut self,
        env: &mut dyn Env,
        kind: Kind,
        (since, began): (Nanos, Nanos),
        status: Status,
    ) {
        let now = env.now();
        let waited = now.since(began);
        self.say_what_is_waited_for(&kind, status, waited, now);
        let number = self.connection_for_next();
        let xid = self.ask_on(env, number, kind, since);
        self.connections[number].forget(xid);
        self.calls.get(xid).expect("it was just asked").patient = Some(began);
        if self.patience.calls.is_empty() {
            self.set_timer(env, Happening::Patience, PAUSE_MIN);
        }
        let pause = waited.clamp(PAUSE_MIN, PAUSE_MAX);
        self.patience.calls.push((Nanos(now.0 + pause.0), xid));
    }

    fn say_what_is_waited_for(&mut self, kind: &Kind, status: Status, waited: Nanos, now: Nanos) {
        let is_news = self.patience.said.is_none_or(|said| now.since(said) >= SAID_AGAIN);
        if waited < QUIET || !is_news {
            return;
        }
        self.patience.said = Some(now);
        log::warn!(
            "{}: {kind}: the server has been asking for patience for {} s ({status}), and is asked again every {} s until it does it: {}",
            self.shared.name,
            waited.0 / 1_000_000_000,
            PAUSE_MAX.0 / 1_000_000_000,
            reason(status)
        );
    }

    /// Makes those calls again whose time has come.
    pub(super) fn end_patience(&mut self, env: &mut dyn Env) {
        let now = env.now();
        let (due, later) = self.patience.calls.drain(..).partition(|(until, _)| *until <= now);
        self.patience.calls = later;
        let due: Vec<(Nanos, u32)> = due;
        for (_, xid) in due {
            if let Some(call) = self.calls.get(xid) {
                self.connections[call.connection].enqueue(xid);
            }
        }
        if !self.patience.calls.is_empty() {
            self.set_timer(env, Happening::Patience, PAUSE_MIN);
        }
    }

    /// Something was answered: says so if nothing is waited for any more.
    pub(super) fn hear_end_of_patience(&mut self) {
        if self.patience.said.is_some() && !self.calls.any_patient() {
            self.patience.said = None;
            log::warn!("{}: the server does again what it is asked", self.shared.name);
        }
    }
}

/// Why a server asks for patience, and what to do where that does not end.
fn reason(status: Status) -> &'static str {
    match status {
        Status::JUKEBOX => {
            "it has yet to get the data, from slow storage or from another client that holds it; if that does not end, see its log, and \
             whether its storage answers"
        }
        Status::GRACE => {
            "it has restarted, and gives those that had files open before time to come back (90 s mostly); if that does not end, see its log \
             for whom it waits for"
        }
        _ => {
            "it has no room for the call; if that does not end, see its log, and give it more memory or threads"
        }
    }
}
