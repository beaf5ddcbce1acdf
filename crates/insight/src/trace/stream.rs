//! A stream of records that arrives in pieces: cuts it into whole records.

use blockwork_format::FormatError;
use blockwork_format::blktrace::{Record, decode};

/// Takes bytes as they come, gives records as they are whole. Keeps at most one record that is not.
#[derive(Debug, Default)]
pub struct RecordStream {
    rest: Vec<u8>,
    /// Where `rest` begins in the stream, bytes.
    offset: u64,
}

impl RecordStream {
    /// At the stream's start.
    pub fn new() -> RecordStream {
        RecordStream::default()
    }

    /// Takes the next bytes, and calls `each` with every record that they complete, and with its bytes.
    ///
    /// # Errors
    ///
    /// What comes next is no record. The stream is of no use any more.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&Record<'_>, &[u8]),
    ) -> Result<(), FormatError> {
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((record, length)) = decode(&self.rest[at..], self.offset)? {
            each(&record, &self.rest[at..at + length]);
            at += length;
            self.offset += length as u64;
        }
        self.rest.drain(..at);
        Ok(())
    }

    /// Bytes of a record that has begun and not ended.
    pub fn unfinished(&self) -> usize {
        self.rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_format::blktrace::Device;

    #[test]
    fn records_come_out_whole_wherever_the_stream_is_cut() {
        let mut whole = Vec::new();
        for i in 0..5u32 {
            let text = "x".repeat(7 * i as usize);
            Record { sequence: i, ..Record::message(Device(8), &text) }.encode(&mut whole);
        }
        for step in [1, 3, 47, 48, 49, 1000] {
            let (mut stream, mut sequences, mut copy) = (RecordStream::new(), Vec::new(), Vec::new());
            for piece in whole.chunks(step) {
                stream
                    .push(piece, |record, bytes| {
                        sequences.push(record.sequence);
                        copy.extend_from_slice(bytes);
                    })
                    .unwrap();
            }
            assert_eq!(sequences, [0, 1, 2, 3, 4]);
            assert_eq!(copy, whole);
            assert_eq!(stream.unfinished(), 0);
        }
    }

    #[test]
    fn an_error_names_the_place_in_the_stream() {
        let mut bytes = Vec::new();
        Record::message(Device(8), "good").encode(&mut bytes);
        let at = bytes.len();
        let mut stream = RecordStream::new();
        stream.push(&bytes, |_, _| {}).unwrap();
        let error = stream.push(b"bad!", |_, _| panic!("no record")).unwrap_err();
        assert!(error.to_string().contains(&format!("at {at}")), "{error}");
    }
}
