//! A piece of the device's trace, by the tracer that serves.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blockwork_engine::{NodeId, NodeInfo};
use blockwork_format::FormatError;
use blockwork_format::blktrace::{Decoder, Formatter, Note};

use crate::trace::{Batch, NodeSet, Received, Subscription, TraceHub};

/// The process in an excerpt, whatever its number is today: a seed gives the same trace each time.
const PID: u32 = 1;

/// Listens to the device.
pub(super) struct Listener {
    pub(super) hub: Arc<TraceHub>,
    subscription: Subscription,
}

impl Listener {
    /// To the first of these nodes, the device.
    pub(super) fn new(nodes: &[NodeInfo]) -> Listener {
        let hub = TraceHub::new(nodes);
        let subscription = hub.subscribe(Some([NodeId(0)].into_iter().collect::<NodeSet>()));
        Listener { hub, subscription }
    }

    /// The lines about I/O that begins at these sectors of the device; times count from the first of them.
    ///
    /// # Errors
    ///
    /// The tracer's records are none: it is wrong.
    pub(super) fn lines(&self, sectors: Range<u64>) -> Result<Vec<String>, FormatError> {
        let mut batches: Vec<Batch> = Vec::new();
        while let Received::Batches(more) = self.subscription.receive(Duration::ZERO) {
            batches.extend(more);
        }
        let mut formatter = Formatter::new();
        let mut text = String::new();
        let mut sequence = 0;
        for record in batches.iter().flat_map(|batch| Decoder::new(&batch.bytes)) {
            let mut record = record?;
            record.pid = PID;
            let names_process = record.action.as_note() == Some(Note::Process);
            let is_wanted = record.action.as_note().is_none() && sectors.contains(&record.sector);
            if names_process || (is_wanted && record.bytes > 0) {
                sequence += u32::from(is_wanted);
                record.sequence = sequence;
                formatter.line(&record, &mut text);
            }
        }
        Ok(text.lines().map(str::to_owned).collect())
    }
}
