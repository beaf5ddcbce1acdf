//! Counts of requests are exact; times lie where the report's do.

use super::*;

/// A file of 16 MiB: all of it takes a moment.
fn small() -> MergePlan {
    MergePlan { pages: 4096, random_reads: 3_000, ..MergePlan::default() }
}

const CUT: Client = Client::Cat { bio: 1 };
const WHOLE: Client = Client::Cat { bio: LARGEST_BIO };

fn outcome(plan: &MergePlan, client: Client, stack: Stack, merges: Merges) -> Outcome {
    Run { client, stack, merges }.outcome(plan, Box::new(|_| ())).unwrap()
}

/// Windows of a file: the first has 64 pages, the others 32.
fn windows(pages: u64) -> u64 {
    1 + pages.saturating_sub(64).div_ceil(32)
}

#[test]
fn lp1833319_without_merging_each_page_is_a_request() {
    for stack in [Stack::Snapshot, Stack::Volume] {
        let old = outcome(&small(), CUT, stack, Merges::None);
        assert_eq!(old.devices[0].reads, small().pages, "{stack:?}");
        assert_eq!(old.devices[0].requests(), small().pages, "{stack:?}: nothing but reads");
    }
}

#[test]
fn lp1833319_pieces_of_a_window_are_one_request_again() {
    for pages in [1, 63, 64, 65, 97, 4096] {
        let plan = MergePlan { pages, ..small() };
        for (client, merges) in
            [(CUT, Merges::All), (CUT, Merges::Simple), (WHOLE, Merges::All), (WHOLE, Merges::None)]
        {
            for stack in [Stack::Snapshot, Stack::Volume] {
                let read = outcome(&plan, client, stack, merges).devices[0];
                assert_eq!(read.reads, windows(pages), "{pages} pages, {client:?} on {stack:?}, {merges:?}");
                assert_eq!(read.read_bytes, pages * 4096);
            }
        }
    }
}

#[test]
fn no_more_than_two_windows_are_on_their_way() {
    let read = outcome(&small(), CUT, Stack::Snapshot, Merges::None).devices[0];
    assert_eq!(read.in_flight_max, 64);
    let read = outcome(&small(), CUT, Stack::Snapshot, Merges::All).devices[0];
    assert_eq!(read.in_flight_max, 2);
}

#[test]
fn times_are_near_those_of_the_report() {
    let plan = MergePlan::default();
    let old = outcome(&plan, CUT, Stack::Snapshot, Merges::None).seconds();
    let new = outcome(&plan, CUT, Stack::Snapshot, Merges::All).seconds();
    assert!((old / 42.693 - 1.0).abs() < 0.05, "{old} s");
    assert!((new / 1.773 - 1.0).abs() < 0.25, "{new} s");
    assert!((14.0..=25.0).contains(&(old / new)), "{old} s and {new} s");
}

#[test]
fn the_snapshot_reads_as_fast_as_its_volume() {
    let seconds = |client, stack, merges| outcome(&small(), client, stack, merges).seconds();
    let volume = seconds(WHOLE, Stack::Volume, Merges::None);
    for (client, merges) in [(CUT, Merges::All), (WHOLE, Merges::All), (WHOLE, Merges::None)] {
        let snapshot = seconds(client, Stack::Snapshot, merges);
        assert!(
            (snapshot / volume - 1.0).abs() < 0.01,
            "{client:?}, {merges:?}: {snapshot} s and {volume} s"
        );
    }
}

#[test]
fn merging_costs_random_reads_nothing_on_the_device() {
    let run = |merges| outcome(&small(), Client::Random, Stack::Volume, merges);
    let none = run(Merges::None);
    assert_eq!(none.devices[0].reads, 3_000);
    for merges in [Merges::All, Merges::Simple] {
        let outcome = run(merges);
        assert!((2_990..=3_000).contains(&outcome.devices[0].reads), "neighbours are rare: {outcome:?}");
        assert!((outcome.seconds() / none.seconds() - 1.0).abs() < 0.01, "{outcome:?}, {none:?}");
    }
}

/// The letters of a trace's lines, and what they are about.
fn letters(excerpt: &Excerpt) -> Vec<String> {
    let word = |line: &String, nth| line.split_whitespace().nth(nth).unwrap().to_owned();
    excerpt.lines.iter().map(|line| format!("{} {}", word(line, 5), word(line, 9))).collect()
}

#[test]
fn the_traces_are_those_of_the_report() {
    let old = letters(&trace(&small(), Merges::None).unwrap());
    let count = |letters: &[String], of: &str| letters.iter().filter(|letter| *letter == of).count();
    for of in ["Q 8", "G 8", "I 8", "D 8", "C 8"] {
        assert_eq!(count(&old, of), 3, "{of}: {old:?}");
    }
    let new = letters(&trace(&small(), Merges::All).unwrap());
    for (of, times) in [("Q 8", 3), ("G 8", 1), ("M 8", 2), ("D 512", 1), ("C 512", 1), ("D 8", 0)] {
        assert_eq!(count(&new, of), times, "{of}: {new:?}");
    }
}

#[test]
fn a_seed_is_one_history() {
    let first = reproduce(&small(), &mut |_| ()).unwrap();
    assert_eq!(first, reproduce(&small(), &mut |_| ()).unwrap());
    assert_ne!(first, reproduce(&MergePlan { seed: 2, ..small() }, &mut |_| ()).unwrap());
    assert_eq!((first.rows.len(), first.rates.len(), first.traces.len()), (8, 3, 2));
    assert!(first.rows.iter().all(|row| row.report_seconds.is_none()), "the report's file had 512 MiB");
}

#[test]
fn a_file_that_does_not_fit_is_refused() {
    for pages in [0, VOLUME.0 / PAGE.0] {
        let error = reproduce(&MergePlan { pages, ..small() }, &mut |_| ()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("a file of {pages} pages: expected 1 to")), "{error}");
    }
}
