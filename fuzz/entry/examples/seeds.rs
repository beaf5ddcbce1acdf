//! Writes the seeds of the corpora to `fuzz/corpus`.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for seed in blockwork_fuzz_entry::seeds::seeds() {
        let folder = corpus.join(seed.target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(&seed.name), &seed.bytes)?;
        println!("{}/{}: {} bytes", seed.target, seed.name, seed.bytes.len());
    }
    Ok(())
}
