//! Logs of dm-mirror.

use blockwork_format::mirror_log::{RUNS_MAX, read_clean};
use blockwork_format::{Source, Sparse};

use crate::input::Input;
use crate::{assert_printable, reached};

/// The head of the log is mended: magic and version.
pub(crate) const FIX_HEADER: u8 = 1;

/// A log. The input: flags u8; the mirror's regions u16; how many zeros follow u32; its bytes.
pub fn mirror_log(data: &[u8]) {
    let mut input = Input(data);
    let (flags, regions, zeros) = (input.u8(), input.u16(), input.u32());
    let mut bytes = input.0.to_vec();
    if flags & FIX_HEADER != 0 && bytes.len() >= 8 {
        bytes[..8].copy_from_slice(b"rRiM\x02\0\0\0");
    }
    let mut disk = Sparse::new(bytes.len() as u64 + u64::from(zeros), Vec::new());
    disk.write(0, bytes);
    let runs = match read_clean(&disk, regions.into()) {
        Ok(runs) => runs,
        Err(error) => {
            reached("refused");
            return assert_printable(&error.to_string());
        }
    };
    reached("log");
    assert!(runs.len() <= RUNS_MAX);
    assert!(runs.iter().all(|run| run.start < run.end && run.end <= u64::from(regions)));
    assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
    for run in runs {
        reached("run");
        let is_set = |region: u64| {
            let mut byte = [0];
            disk.read_at(1024 + region / 8, &mut byte).expect("it was read");
            byte[0] >> (region % 8) & 1 == 1
        };
        assert!(is_set(run.start) && is_set(run.end - 1));
    }
}
