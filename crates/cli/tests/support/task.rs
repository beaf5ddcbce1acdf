//! A task over disks in the test's own process, for what no command does: to stop half-way, at a certain step.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{TaskContext, Worker, WorkerConfig};
use blockwork_uring::{Uring, UringConfig};
use blockwork_volume::Assembly;

/// Runs it to its end, on a worker of this thread.
pub fn on_worker<T, F>(assembly: &Assembly, task: impl FnOnce(TaskContext) -> F) -> T
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let env = Uring::new(&UringConfig::default()).expect("io_uring");
    let config = WorkerConfig::new(Arc::from([]), assembly.leaves(), assembly.stats().worker());
    let mut worker = Worker::new(env, config);
    let result = Rc::new(RefCell::new(None));
    worker.spawn(|cx| {
        let (task, result) = (task(cx), result.clone());
        async move {
            let done = task.await;
            *result.borrow_mut() = Some(done);
        }
    });
    worker.handle().stop();
    worker.run().expect("the last flush");
    result.take().expect("the task has ended")
}
