//! Files of blktrace records.

use blockwork_format::blktrace::{ByteOrder, Decoder, Formatter, Record, decode};

use crate::{assert_printable, reached};

/// A trace as it is in a file.
pub fn blktrace(data: &[u8]) {
    let mut decoder = Decoder::new(data);
    let mut formatter = Formatter::new();
    let mut taken = 0;
    while let Some(record) = decoder.next() {
        match record {
            Ok(record) => {
                reached("record");
                let bytes = decoder.consumed() - taken;
                assert!(bytes >= 48, "{bytes} bytes");
                taken = decoder.consumed();
                check_text(&mut formatter, &record);
                check_encoding(&record);
            }
            Err(error) => {
                reached("refused");
                assert_printable(&error.to_string());
                assert!(decoder.next().is_none(), "an error is the last");
            }
        }
    }
    assert!(decoder.consumed() <= data.len());
}

fn check_text(formatter: &mut Formatter, record: &Record<'_>) {
    let mut text = String::new();
    formatter.line(record, &mut text);
    if let Some(line) = text.strip_suffix('\n') {
        reached("line");
        assert_printable(line);
    } else {
        assert_eq!(text, "", "a line without its end");
    }
}

/// What version 7 can hold, it holds.
fn check_encoding(record: &Record<'_>) {
    if record.action.0 > u64::from(u32::MAX) {
        return;
    }
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    let (again, length) = decode(&bytes, 0).expect("what was encoded").expect("all of it");
    assert_eq!(length, bytes.len());
    assert_eq!(again, Record { order: ByteOrder::Little, ..record.clone() });
}
