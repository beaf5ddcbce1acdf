//! The memory and null leaves, against an array of bytes.

mod lab;

use blockwork_engine::{Allocation, Flags, LeafSource, Op, Sector, Sectors};
use blockwork_leaf::{MemorySource, NullSource, OpenOptions, open};
use lab::{Lab, pattern};
use proptest::prelude::*;

const SECTORS: u64 = 1000; // seven extents and a part of one

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Discard(u64, u64),
    Zero(u64, u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..SECTORS).prop_flat_map(|at| (Just(at), 1..=SECTORS - at));
    prop_oneof![
        (range(), any::<u8>()).prop_map(|((at, nr), seed)| Step::Write(at, nr, seed)),
        range().prop_map(|(at, nr)| Step::Discard(at, nr)),
        (range(), any::<bool>()).prop_map(|((at, nr), unmap)| Step::Zero(at, nr, unmap)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_memory_disk_holds_what_an_array_would(steps in proptest::collection::vec(step(), 1..12)) {
        let source = MemorySource::new(SECTORS * 512, "memory:1000s").unwrap();
        let mut lab = Lab::new(&source);
        let mut model = vec![0_u8; (SECTORS * 512) as usize];
        for step in steps {
            let (at, nr) = match step {
                Step::Write(at, nr, seed) => {
                    let bytes = pattern(nr as usize, seed);
                    lab.write(Flags::NONE, at, &bytes);
                    model[(at * 512) as usize..][..bytes.len()].copy_from_slice(&bytes);
                    continue;
                }
                Step::Discard(at, nr) => {
                    lab.run(Op::Discard, Flags::NONE, at, nr, &[]).unwrap();
                    (at, nr)
                }
                Step::Zero(at, nr, unmap) => {
                    let flags = if unmap { Flags::NONE } else { Flags::NO_UNMAP };
                    lab.run(Op::WriteZeroes, flags, at, nr, &[]).unwrap();
                    (at, nr)
                }
            };
            model[(at * 512) as usize..][..(nr * 512) as usize].fill(0);
        }
        prop_assert!(lab.read(0, SECTORS) == model);
        let mut now = vec![1; model.len()];
        source.read_now(0, &mut now).unwrap();
        prop_assert!(now == model);
        // What is said to be a hole reads as zeros, and the answers cover the disk.
        let mut at = 0;
        while at < SECTORS {
            let (kind, nr) = lab.leaf.allocation(Sector(at), Sectors(SECTORS - at)).unwrap();
            prop_assert!(nr > Sectors::ZERO && at + nr.0 <= SECTORS);
            if kind == Allocation::Hole {
                prop_assert!(model[(at * 512) as usize..][..nr.byte_len()].iter().all(|byte| *byte == 0));
            }
            at += nr.0;
        }
    }
}

#[test]
fn a_discard_gives_memory_back_and_workers_share_the_disk() {
    let source = MemorySource::new(8 << 40, "memory:8T").unwrap();
    let (mut one, mut other) = (Lab::new(&source), Lab::new(&source));
    one.write(Flags::NONE, 1 << 30, &pattern(256, 1));
    assert!(other.read(1 << 30, 256) == pattern(256, 1));
    assert_eq!(source.resident_bytes(), 2 * 65536);
    assert_eq!(one.leaf.allocation(Sector(1 << 30), Sectors(1 << 20)), Ok((Allocation::Data, Sectors(256))));
    other.run(Op::Discard, Flags::NONE, 0, source.sectors().0, &[]).unwrap();
    assert_eq!(source.resident_bytes(), 0);
    one.run(Op::WriteZeroes, Flags::NO_UNMAP, 0, 128, &[]).unwrap();
    assert_eq!(source.resident_bytes(), 65536, "must not unmap: stays allocated");
}

#[test]
fn a_null_disk_reads_as_zeros_whatever_the_buffer_held() {
    let source = NullSource::new(1 << 30, "null:1G").unwrap();
    let mut lab = Lab::new(&source);
    lab.write(Flags::FUA, 5, &pattern(3, 1));
    assert!(lab.read(4, 8).iter().all(|byte| *byte == 0));
    for op in [Op::Flush, Op::Discard, Op::WriteZeroes] {
        lab.run(op, Flags::NONE, 0, 8, &[]).unwrap();
    }
    assert_eq!(lab.leaf.allocation(Sector(0), Sectors(100)), Ok((Allocation::Hole, Sectors(100))));
}

#[test]
fn both_are_opened_by_name() {
    let null = open("null:10G,nomerges=2", &OpenOptions::default()).unwrap().source;
    assert_eq!((null.sectors(), null.name()), (Sectors(10 << 21), "null:10G"));
    assert_eq!(null.limits().merges, blockwork_engine::Merges::None);
    let memory = open("memory:512M,ro", &OpenOptions::default()).unwrap().source;
    assert_eq!((memory.sectors(), memory.limits().read_only), (Sectors(1 << 20), true));
    for bad in ["null:0", "memory:1000", "null:x"] {
        let error = open(bad, &OpenOptions::default()).err().unwrap().to_string();
        assert!(error.contains(bad), "{error}");
    }
}
