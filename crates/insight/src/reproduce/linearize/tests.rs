//! Rates lie where the report's do, and auto beside the better of them, whatever the kernel.
//!
//! `SEEDS=20 cargo test -p blockwork-insight --release --lib linearize -- --nocapture` runs all rows with so many seeds, and tells how they are
//! distributed.

use super::*;

#[test]
fn both_columns_are_the_reports_and_auto_is_the_better_one() {
    let plan = LinearizePlan::default();
    for rate in reproduce(&plan, &mut |_| ()).unwrap().linearize {
        for (here, reported) in [(rate.off, rate.report_unpatched), (rate.on, rate.report_patched)] {
            assert!((0.95..1.05).contains(&(here / reported)), "{rate:?}");
        }
        assert!(rate.auto_of_better > 0.99, "{rate:?}");
    }
}

/// What auto is of the better column, of a row.
struct Cell {
    part: f64,
    row: usize,
    seed: u64,
}

fn cell(row: usize, plan: &LinearizePlan) -> Cell {
    let rate = |way| run(&ROWS[row], way, plan, Box::new(|_| ())).unwrap();
    let [off, on, auto] = [Linearize::Off, Linearize::On, Linearize::Auto].map(rate);
    Cell { part: auto / off.max(on), row, seed: plan.seed }
}

fn seeds() -> Option<u64> {
    std::env::var("SEEDS").ok().map(|text| text.parse().expect("SEEDS is a number"))
}

/// Cells of a plan: of all rows a third, another one for each plan; or, for whoever asks for seeds, all, and how they are distributed.
fn cells(nth: usize, plan: &LinearizePlan) -> Vec<Cell> {
    let rows = || (nth % 3..ROWS.len()).step_by(3);
    let Some(seeds) = seeds() else { return rows().map(|row| cell(row, plan)).collect() };
    let all = (1..=seeds).flat_map(|seed| (0..ROWS.len()).map(move |row| (row, seed)));
    let mut cells: Vec<Cell> =
        all.map(|(row, seed)| cell(row, &LinearizePlan { seed, ..plan.clone() })).collect();
    cells.sort_by(|one, other| one.part.total_cmp(&other.part));
    let below = |part: f64| cells.iter().filter(|cell| cell.part < part).count();
    let worst: Vec<_> = cells.iter().take(4).map(|cell| (cell.part, cell.row, cell.seed)).collect();
    println!("{plan:?}: {} of {} below 0.99, worst {worst:.4?}", below(0.99), cells.len());
    cells
}

/// Each plan beside what no row of it may fall below. Not of seeds that somebody asks for, among which there may be worse ones.
fn none_is_misled(plans: &[(LinearizePlan, f64)]) {
    let (mut all, mut below) = (0, Vec::new());
    for (nth, (plan, floor)) in plans.iter().enumerate() {
        for Cell { part, row, seed } in cells(nth, plan) {
            let what =
                format!("{part:.4}: {}, {} threads, seed {seed}, {plan:?}", ROWS[row].job, ROWS[row].threads);
            assert!(seeds().is_some() || part > *floor, "not above {floor}: {what}");
            all += 1;
            below.extend((part < 0.99).then_some(what));
        }
    }
    assert!(below.len() * 20 <= all, "{} of {all} below 0.99: {below:#?}", below.len());
}

fn plan(kernel: Kernel, noise: f64, change_at: f64, change_until: Option<f64>) -> LinearizePlan {
    LinearizePlan { kernel, noise, change_at, change_until, ..LinearizePlan::default() }
}

/// The rule alone is tried with many more seeds in the engine (`choice/rows.rs`).
#[test]
fn kernels_of_all_kinds_and_changes_at_any_time_do_not_mislead_it() {
    none_is_misled(&[
        (plan(Kernel::Mended, 0.2, 0.5, None), 0.992),
        (plan(Kernel::Half, 0.5, 0.5, None), 0.985),
        (plan(Kernel::MendedLater, 0.2, 0.25, None), 0.985),
        (plan(Kernel::BrokenLater, 0.2, 0.25, None), 0.985),
        (plan(Kernel::BrokenLater, 0.2, 0.5, None), 0.985),
        (plan(Kernel::BrokenLater, 0.5, 0.75, None), 0.985),
    ]);
}

#[test]
fn kernels_that_change_little_by_little_do_not_mislead_it() {
    none_is_misled(&[
        (plan(Kernel::MendedLater, 0.2, 0.25, Some(0.75)), 0.992),
        (plan(Kernel::BrokenLater, 0.2, 0.25, Some(0.75)), 0.99),
        (plan(Kernel::BrokenLater, 0.2, 0.0, Some(1.0)), 0.985),
    ]);
}
