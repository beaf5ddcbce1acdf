//! Runs every fuzz target, without a fuzzer: over each file of its corpus, and over mutations of them that a seed
//! determines.
//!
//! `FUZZ_MUTATIONS=N` makes more of them (2,000 for each target otherwise), `FUZZ_SEED=N` runs only that one. An input
//! that fails is kept under `fuzz/artifacts/TARGET/`, and the message says how to run it again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::{env, fs};

use blockwork_fuzz_entry::{Body, TARGETS, seeds::seeds, take_reached};

const MUTATIONS: u64 = 2_000;

/// Longest file of a corpus: they are in the repository.
const FILE_BYTES_MAX: usize = 16 * 1024;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder("corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    for (target, _) in TARGETS {
        let files = corpus(target);
        assert!(!files.is_empty(), "fuzz/corpus/{target} is empty");
        for (path, bytes) in files {
            assert!(bytes.len() <= FILE_BYTES_MAX, "{}: {} bytes", path.display(), bytes.len());
        }
        let source = folder("fuzz_targets").join(format!("{target}.rs"));
        assert!(source.is_file(), "{} is missing", source.display());
        let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{target}\"\n")), "{target} is not in fuzz/Cargo.toml");
    }
    for entry in fs::read_dir(folder("corpus")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "fuzz/corpus/{name} has no target");
    }
}

#[test]
fn the_seeds_in_the_corpora_are_those_that_the_writers_make() {
    for seed in seeds() {
        let path = folder("corpus").join(seed.target).join(&seed.name);
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = "cargo run -p blockwork-fuzz-entry --example seeds";
        assert!(found == seed.bytes, "{} is stale: {again}", path.display());
    }
}

#[test]
fn every_file_of_every_corpus_passes() {
    for (target, body) in TARGETS {
        for (path, bytes) in corpus(target) {
            let passed = catch_unwind(|| body(&bytes)).is_ok();
            assert!(passed, "{} fails in target {target}; see above", path.display());
        }
    }
}

#[test]
fn mutations_of_every_corpus_pass_and_get_deep() {
    // How often something must be reached, of 1,000 inputs: a fifth to a half of what was seen when this was written.
    let wanted: BTreeMap<&str, &[(&str, u64)]> = BTreeMap::from([
        (
            "gpt",
            &[
                ("gpt", 200),
                ("partition", 400),
                ("entry left out", 50),
                ("backup used", 60),
                ("refused", 200),
            ][..],
        ),
        ("mbr", &[("mbr", 300), ("partition", 400), ("entry left out", 100)]),
        ("partition", &[("gpt", 10), ("mbr", 30), ("no table", 300)]),
        ("dm_table", &[("table", 20), ("refused", 400)]),
        ("blkif", &[("okay", 300), ("refused", 300), ("broken", 30), ("keys", 20), ("keys refused", 30)]),
        ("blktrace", &[("record", 2000), ("line", 1000), ("refused", 300)]),
        ("log_writes", &[("log", 400), ("entry", 1200), ("entry refused", 60), ("refused", 10)]),
        (
            "nbd",
            &[
                ("go", 300),
                ("tls", 40),
                ("submitted", 500),
                ("answered", 500),
                ("status payload", 10),
                ("closed", 200),
            ],
        ),
        ("nfs3", &[("head", 400), ("result", 90), ("status", 120), ("short", 90), ("refused", 150)]),
        (
            "nfs4",
            &[("head", 300), ("result", 20), ("status", 50), ("stopped", 3), ("short", 60), ("refused", 250)],
        ),
        (
            "lvm2_pv",
            &[
                ("label", 300),
                ("area", 250),
                ("text", 400),
                ("tree", 200),
                ("volume group", 4),
                ("place", 250),
            ],
        ),
        ("lvm2_text", &[("tree", 15), ("volume group", 5), ("refused", 300)]),
        (
            "md_superblock",
            &[
                ("1.x", 30),
                ("0.90", 40),
                ("bitmap", 30),
                ("size", 30),
                ("writable", 20),
                ("refused", 200),
                ("no room", 5),
            ],
        ),
        ("md_bitmap", &[("bitmap", 150), ("bits", 150), ("bits missing", 1), ("refused", 200)]),
        ("md_bad_blocks", &[("list", 150), ("entry", 130), ("refused", 200)]),
        ("dm_raid", &[("superblock", 150), ("supported", 100), ("refused", 150)]),
        ("mirror_log", &[("log", 200), ("run", 1000), ("refused", 100)]),
        ("exception_store", &[("valid", 300), ("exception", 4000), ("refused", 40), ("written again", 200)]),
        ("vhost_user", &[("message", 80), ("refused", 150), ("no header", 200)]),
        (
            "virtqueue",
            &[
                ("chain", 700),
                ("request", 500),
                ("completed", 150),
                ("overtaken", 100),
                ("published", 150),
                ("broken", 200),
                ("no ring", 1),
                ("resumed", 60),
            ],
        ),
        (
            "thin_metadata",
            &[("superblock", 100), ("mappings", 60), ("bitmap", 150), ("dump", 20), ("refused", 300)],
        ),
        ("cache_metadata", &[("superblock", 50), ("kept", 4000), ("refused", 200)]),
        ("writecache", &[("writecache", 200), ("kept", 8000), ("refused", 150)]),
        (
            "thin_edit",
            &[
                ("mapped", 250),
                ("unmapped", 90),
                ("snapshot", 150),
                ("deleted", 200),
                ("held", 80),
                ("released", 130),
                ("committed", 250),
                ("refused", 500),
            ],
        ),
    ]);
    for (target, body) in TARGETS {
        let files: Vec<_> = corpus(target).into_iter().map(|(_, bytes)| bytes).collect();
        take_reached();
        let (first, count) = match env::var("FUZZ_SEED") {
            Ok(seed) => (seed.parse().expect("FUZZ_SEED is a number"), 1),
            Err(_) => (0, env::var("FUZZ_MUTATIONS").map_or(MUTATIONS, |n| n.parse().expect("a number"))),
        };
        if let Err(message) = run_mutations(target, *body, &files, first..first + count) {
            panic!("{message}");
        }
        let reached = take_reached();
        println!("{target}: of {count} inputs, reached {reached:?}");
        for (place, least) in wanted.get(target).copied().unwrap_or_default() {
            let found = reached.get(place).copied().unwrap_or(0);
            assert!(count == 1 || found * 1000 >= least * count, "{target}: \"{place}\" of {reached:?}");
        }
    }
}

#[test]
fn a_target_that_fails_is_reported_with_its_seed_and_input() {
    let fails: Body = |data| assert!(data.first() != Some(&0xff), "as it must");
    let files = vec![vec![0; 4]];
    let message =
        run_mutations("canary", fails, &files, 0..2_000).expect_err("a mutation sets the first byte to ff");
    let seed: u64 = message.split("FUZZ_SEED=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let kept = folder("artifacts").join("canary").join(format!("seed-{seed}"));
    assert_eq!(fs::read(&kept).unwrap(), mutated(&files, seed));
    fs::remove_dir_all(folder("artifacts").join("canary")).unwrap();
}

fn run_mutations(
    target: &str,
    body: Body,
    files: &[Vec<u8>],
    seeds: std::ops::Range<u64>,
) -> Result<(), String> {
    for seed in seeds {
        let input = mutated(files, seed);
        if catch_unwind(AssertUnwindSafe(|| body(&input))).is_err() {
            let kept = folder("artifacts").join(target);
            fs::create_dir_all(&kept).unwrap();
            fs::write(kept.join(format!("seed-{seed}")), &input).unwrap();
            return Err(format!(
                "target {target} fails (see above). Again: FUZZ_SEED={seed} cargo test -p blockwork-fuzz-entry; the input is \
                 fuzz/artifacts/{target}/seed-{seed}, copy it to fuzz/corpus/{target} when it is mended"
            ));
        }
    }
    Ok(())
}

/// The input of a seed: a file of the corpus with one to eight changes.
fn mutated(files: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut input = files[random.below(files.len())].clone();
    for _ in 0..=random.below(8) {
        let other = &files[random.below(files.len())];
        mutate(&mut input, other, &mut random);
    }
    input
}

fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(16) {
        0 => input.truncate(at),
        1 => drop(input.splice(at..at, [0; 7])),
        2 => {
            let end = input.len().min(at + random.below(80));
            let piece = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            drop(input.splice(to..to, piece));
        }
        3 => {
            let end = input.len().min(at + random.below(80));
            drop(input.drain(at..end));
        }
        4 => {
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend(&other[from..]);
        }
        5..=9 => overwrite(input, at, &interesting(random)),
        10..=12 => overwrite(input, at, &[random.byte()]),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in input.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// Numbers at the edges, of one to eight bytes.
fn interesting(random: &mut Random) -> Vec<u8> {
    const EDGES: [u64; 12] =
        [0, 1, 2, 127, 128, 255, 511, 512, 4096, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];
    let number = match random.below(14) {
        12 => u64::MAX,
        13 => 0u64.wrapping_sub(u64::from(random.byte())),
        edge => EDGES[edge],
    };
    number.to_le_bytes()[..1 << random.below(4)].to_vec()
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 up to `end`, which is not reached.
    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("a length");
        usize::try_from(self.next() % end).expect("below a length")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
