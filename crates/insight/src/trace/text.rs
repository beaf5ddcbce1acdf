//! Live text, as blkparse prints it.

use blockwork_format::FormatError;
use blockwork_format::blktrace::{Decoder, Formatter, Record};

use super::queue::Batch;

/// Prints batches as they come. Records of several workers are put in order of time as far as they arrive together.
#[derive(Debug, Default)]
pub struct TextMerge {
    formatter: Option<(Formatter, u64)>,
}

impl TextMerge {
    /// Times count from the first record.
    pub fn new() -> TextMerge {
        TextMerge::default()
    }

    /// The lines of `batches`.
    ///
    /// # Errors
    ///
    /// A batch that does not hold whole records.
    pub fn push(&mut self, batches: &[Batch]) -> Result<String, FormatError> {
        let mut records: Vec<Record<'_>> = Vec::new();
        for batch in batches {
            for record in Decoder::new(&batch.bytes) {
                records.push(record?);
            }
        }
        records.sort_by_key(|record| record.time_ns); // stable: a worker's own order is kept
        let mut text = String::new();
        for record in &mut records {
            let (formatter, genesis) =
                self.formatter.get_or_insert_with(|| (Formatter::since(record.time_ns), record.time_ns));
            // A worker that reports late may have something from before the first line.
            record.time_ns = record.time_ns.max(*genesis);
            formatter.line(record, &mut text);
        }
        Ok(text)
    }
}
