//! All runs of a report, on all processors. Runs are worlds of their own: in what order they are made changes nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::lab::Progress;

/// Makes each run once, and returns what came of them, in their order. `progress` hears what part of all is done.
///
/// # Errors
///
/// What the first of the runs that failed said.
pub(super) fn run_all<R: Sync, T: Send, E: Send>(
    runs: &[R],
    run: impl Fn(&R, Progress) -> Result<T, E> + Sync,
    progress: &mut dyn FnMut(f64),
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let (tell, hear) = mpsc::channel();
    let take = |tell: mpsc::Sender<f64>| {
        let mut results = Vec::new();
        // The next one that nobody has taken.
        while let Some((nth, of)) = runs.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
            results.push((nth, run(of, parts(tell.clone()))));
        }
        results
    };
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(runs.len()));
    let mut results: Vec<_> = thread::scope(|scope| {
        let take = &take;
        let workers: Vec<_> =
            (0..threads).map(|_| tell.clone()).map(|tell| scope.spawn(|| take(tell))).collect();
        drop(tell);
        let mut done = 0.0;
        for part in hear {
            done += part;
            progress(done / runs.len() as f64);
        }
        let results = workers.into_iter().map(|worker| worker.join());
        results.flat_map(|some| some.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.sort_by_key(|(nth, _)| *nth);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Tells what has been done since it was last told, if that is worth it.
fn parts(tell: mpsc::Sender<f64>) -> Progress {
    let mut told = 0.0;
    Box::new(move |done| {
        if done - told >= 0.01 || done >= 1.0 {
            // Nobody listens any more only if a run has failed.
            let _ = tell.send(done - told);
            told = done;
        }
    })
}
