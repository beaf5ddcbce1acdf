//! A task over disks that nobody serves, for verbs that change what disks are: a worker of this thread runs it, and ends.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use blockwork_engine::{TaskContext, Worker, WorkerConfig};
use blockwork_uring::{Uring, UringConfig};
use blockwork_volume::Assembly;

/// Runs the task to its end; what it came to. All that it wrote is durable then.
///
/// # Errors
///
/// io_uring cannot be used, or the last flush failed.
pub(crate) fn run<T, F>(assembly: &Assembly, task: impl FnOnce(TaskContext) -> F) -> Result<T>
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let env = Uring::new(&UringConfig::default())?;
    let stats = assembly.stats();
    let mut worker = Worker::new(env, WorkerConfig::new(Arc::from([]), assembly.leaves(), stats.worker()));
    let result = Rc::new(RefCell::new(None));
    worker.spawn(|cx| {
        let (task, result) = (task(cx), result.clone());
        async move {
            let done = task.await;
            *result.borrow_mut() = Some(done);
        }
    });
    // A worker ends when its tasks have.
    worker.handle().stop();
    worker.run().context("the last flush failed: what was written may be lost")?;
    let done = result.borrow_mut().take();
    done.context("the worker ended before its task")
}
