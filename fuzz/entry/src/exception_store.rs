//! Exception stores of dm-snapshot.

use std::collections::BTreeSet;

use blockwork_format::Sparse;
use blockwork_format::snapshot::{Found, HEADER_BYTES, Header, Layout, create, read};

use crate::input::Input;
use crate::{assert_printable, reached};

/// The header is mended: magic, `valid` and version.
pub(crate) const FIX_HEADER: u8 = 1;

/// A store. The input: flags u8; the snapshot's sectors u32; how many zeros follow u32; its bytes.
pub fn exception_store(data: &[u8]) {
    let mut input = Input(data);
    let (flags, sectors, zeros) = (input.u8(), input.u32(), input.u32());
    let mut bytes = input.0.to_vec();
    if flags & FIX_HEADER != 0 && bytes.len() >= 16 {
        bytes[..12].copy_from_slice(b"SnAp\x01\0\0\0\x01\0\0\0");
    }
    let size = bytes.len() as u64 + u64::from(zeros);
    let mut disk = Sparse::new(size, Vec::new());
    disk.write(0, bytes);
    let contents = match read(&disk, sectors.into()) {
        Ok(Found::Valid(contents)) => contents,
        Ok(Found::New) => return reached("new"),
        Ok(Found::Invalid(_)) => return reached("invalid"),
        Err(error) => {
            reached("refused");
            return assert_printable(&error.to_string());
        }
    };
    reached("valid");
    let layout = contents.layout;
    let header = Header { valid: true, layout };
    let encoded: [u8; HEADER_BYTES] = header.encode();
    assert_eq!(Header::decode(&encoded), Ok(Some(header)));
    let (mut old, mut new) = (BTreeSet::new(), BTreeSet::new());
    for exception in &contents.exceptions {
        reached("exception");
        assert!(old.insert(exception.old) && new.insert(exception.new));
        assert!(exception.old * layout.chunk_sectors() < u64::from(sectors));
        assert!((exception.new + 1) * layout.chunk_bytes() <= size && !layout.is_metadata(exception.new));
        assert!(exception.new < contents.next_chunk());
    }
    // Written again, in order, it is the same list.
    if layout == Layout::new(1).expect("a power of two") {
        let mut copy = Sparse::new(size, create(layout).to_vec());
        for (n, exception) in (0u64..).zip(&contents.exceptions) {
            let at = layout.area_chunk(n / 32) * 512 + n % 32 * 16;
            if n % 32 == 0 {
                copy.write(at, vec![0; 512]);
            }
            copy.write(at, exception.encode().to_vec());
        }
        let again = read(&copy, sectors.into());
        assert!(matches!(again, Ok(Found::Valid(found)) if found.exceptions == contents.exceptions));
        reached("written again");
    }
}
