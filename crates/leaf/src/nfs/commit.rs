//! Making durable what the server may still forget: COMMIT, and after a restart of the server everything once more.
//!
//! ```text
//!   COMMIT ──▶ stable WRITEs beside it have ended ──▶ all of its verifier ──▶ done
//!     ▲                                                  │ else: another life of the server had it, or nobody knows
//!     └───────────────────── WRITE ◀─────────────────────┘
//! ```
//!
//! For a flush, ahead of one that is expected (`habit`), or because the memory for what is uncommitted is half full. One at a time over all
//! workers, by the turns in which their queues flush: a server tells of what it has lost once, and of two COMMITs that overlap one might
//! hear of it and the other succeed. Any worker's covers what all workers have written.

use blockwork_engine::{Ended, Env, Errno, Nanos, Token, Turn};
use blockwork_format::nfs3::{Stable, Verifier};

use super::call::{Kind, Write, Writer};
use super::client::{NfsLeaf, SILENCE};
use super::connection::Happening;
use super::ledger::Resend;

/// WRITEs under way while all is sent again.
const RESENDS_MAX: usize = 16;
/// A server that has another verifier each time is not asked for ever.
const ROUNDS_MAX: u32 = 100;
/// How often to look whether other workers' stable writes have ended.
const OTHERS: Nanos = Nanos::millis(1);

/// Who wants it.
pub(super) enum Cause {
    /// A flush, which waits for it. Its queue has the turn.
    Flush(Token),
    /// Nobody but us: memory is scarce, or a flush is expected. The turn is ours until all workers know how it went.
    Ourselves(Turn),
}

/// What is being committed.
pub(super) struct Commit {
    cause: Cause,
    /// What was answered up to here is covered.
    cutoff: u64,
    step: Step,
    rounds: u32,
    failed: Option<Failed>,
}

/// Why a COMMIT has come to nothing.
#[derive(Clone, Copy)]
struct Failed {
    errno: Errno,
    /// All that was to be committed is kept still, and a later COMMIT may cover it: nobody has said that anything of it is lost.
    is_kept: bool,
}

impl Failed {
    /// By an answer, or for want of one, on a soft mount.
    fn by(errno: Errno) -> Failed {
        Failed { errno, is_kept: errno == SILENCE }
    }
}

enum Step {
    /// The server commits.
    Committing,
    /// It has, in the life of that verifier. Stable writes that were under way then may still tell of what it had lost before.
    Answered {
        verifier: Verifier,
        at: u64,
    },
    /// It has restarted.
    Resending {
        /// Its verifier now.
        verifier: Verifier,
        /// Where to look for what must be sent next; `None`: all was.
        from: Option<u64>,
        under_way: usize,
    },
    Over,
}

impl NfsLeaf {
    /// Begins to commit all that was answered.
    pub(super) fn start_commit(&mut self, env: &mut dyn Env, cause: Cause) {
        assert!(self.commit.is_none(), "who has the turn is alone");
        let cutoff = self.ask_to_commit(env);
        self.commit = Some(Commit { cause, cutoff, step: Step::Committing, rounds: 0, failed: None });
    }

    /// Asks, and tells what the server has taken before, in whichever life.
    fn ask_to_commit(&mut self, env: &mut dyn Env) -> u64 {
        let asked = self.ledger().asks();
        self.ask(env, Kind::Commit);
        asked
    }

    /// Begins to, if the memory for what is uncommitted gets scarce, or the client will flush soon. Where somebody else commits, that
    /// makes room as well; and after a failure nothing is known to be safe, so all is kept.
    pub(super) fn commit_ahead(&mut self, env: &mut dyn Env) {
        let leaf = &self.shared.leaf;
        if (self.shared.arena.is_half_full() || self.ledger().habit.is_time())
            && !leaf.has_failed()
            && let Some(turn) = leaf.try_flush_turn()
        {
            self.ledger().habit.goes_ahead();
            self.start_commit(env, Cause::Ourselves(turn));
        }
    }

    /// The server has committed, in the life of that verifier.
    pub(super) fn has_committed(&mut self, verifier: Verifier) {
        let at = self.ledger().now();
        if let Some(commit) = &mut self.commit {
            commit.step = Step::Answered { verifier, at };
        }
    }

    /// What has come of that, if nothing can change it any more.
    fn judge(&mut self, env: &mut dyn Env, commit: &mut Commit) {
        let Step::Answered { verifier, at } = commit.step else { return };
        if self.ledger().may_still_tell(at) {
            // Those of other workers end without a word to this one.
            if !std::mem::replace(&mut self.looks_for_others, true) {
                self.set_timer(env, Happening::Others, OTHERS);
            }
            return;
        }
        commit.rounds += 1;
        let left = self.ledger().committed(commit.cutoff, verifier);
        commit.step = if left == 0 {
            Step::Over
        } else if commit.rounds == ROUNDS_MAX {
            log::error!(
                "{}: {left} bytes were sent {ROUNDS_MAX} times, and the server may have forgotten them each time: it restarts, or goes on failing \
                 to make writes durable. They are kept for the next flush; see what is the matter with it",
                self.shared.name
            );
            commit.failed = Some(Failed { errno: Errno::EIO, is_kept: true });
            Step::Over
        } else {
            log::warn!(
                "{}: {left} bytes are sent again that the server may have forgotten: it has restarted, or failed to make a write durable",
                self.shared.name
            );
            Step::Resending { verifier, from: Some(0), under_way: 0 }
        };
    }

    /// COMMIT has failed.
    pub(super) fn commit_failed(&mut self, errno: Errno) {
        if let Some(commit) = &mut self.commit {
            commit.failed = Some(Failed::by(errno));
            commit.step = Step::Over;
        }
    }

    /// A piece that was sent again has come to its end.
    pub(super) fn has_resent(&mut self, result: Result<(), Errno>) {
        if let Some(Commit { step: Step::Resending { from, under_way, .. }, failed, .. }) = &mut self.commit {
            *under_way -= 1;
            if let Err(errno) = result {
                // The worst of them counts.
                let is_worse = failed.is_none_or(|failed| failed.is_kept);
                *failed = if is_worse { Some(Failed::by(errno)) } else { *failed };
                *from = None;
            }
        }
    }

    /// Takes the next steps, as far as they can be taken now.
    pub(super) fn go_on_with_commit(&mut self, env: &mut dyn Env, ended: &mut Vec<Ended>) {
        let Some(mut commit) = self.commit.take() else { return };
        self.judge(env, &mut commit);
        if let Step::Resending { verifier, from, under_way } = &mut commit.step {
            while *under_way < RESENDS_MAX
                && let Some(place) = *from
            {
                let next = self.ledger().resend(place, commit.cutoff, *verifier);
                *from = next.as_ref().map(|resend| resend.piece.start + 1);
                if let Some(resend) = next {
                    *under_way += 1;
                    self.send_again(env, resend);
                }
            }
            if *under_way == 0 {
                commit.step = if commit.failed.is_some() { Step::Over } else { Step::Committing };
                if commit.failed.is_none() {
                    self.ask_to_commit(env);
                }
            }
        }
        if !matches!(commit.step, Step::Over) {
            self.commit = Some(commit);
            return;
        }
        self.end_commit(commit, ended);
    }

    fn send_again(&mut self, env: &mut dyn Env, resend: Resend) {
        let Resend { flight, number, piece } = resend;
        let write = Write {
            writer: Writer::Again(number),
            flight,
            data: std::iter::once(piece.block.segment(piece.at, piece.len)).collect(),
            block: Some(piece.block),
            offset: piece.start,
            len: u32::try_from(piece.len).expect("no longer than a request"),
            stable: Stable::Unstable,
            done: 0,
            stuck: 0,
            taken: None,
        };
        self.ask(env, Kind::Writes(vec![write]));
    }

    fn end_commit(&mut self, commit: Commit, ended: &mut Vec<Ended>) {
        if let Some(Failed { errno, is_kept: false }) = commit.failed {
            self.tell_of_loss(errno);
        }
        match commit.cause {
            Cause::Flush(token) => {
                let result = commit.failed.map_or(Ok(0), |failed| Err(failed.errno));
                ended.push(Ended { token, result });
            }
            // Not before all know of it.
            Cause::Ourselves(turn) => drop(turn),
        }
    }

    /// Whoever flushes next must hear of it, too.
    fn tell_of_loss(&self, errno: Errno) {
        if self.shared.leaf.fail() {
            log::error!(
                "{}: COMMIT failed: {errno}. What was written since the last flush may be lost, so writes and \
                 flushes are refused from now on; reads go on. Check the server, then serve it again.",
                self.shared.name
            );
        }
    }
}
