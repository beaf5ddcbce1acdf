//! Rates lie where the report's do, and auto beside the better of them, whatever the kernel.

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

/// The rule alone is tried with many more seeds in the engine (`choice/rows.rs`).
#[test]
fn kernels_of_all_kinds_and_changes_at_any_time_do_not_mislead_it() {
    let seeds = std::env::var("SEEDS").map_or(1, |text| text.parse().expect("SEEDS is a number"));
    let change =
        |kernel, noise, change_at| LinearizePlan { kernel, noise, change_at, ..LinearizePlan::default() };
    let plans = [
        change(Kernel::Mended, 0.2, 0.5),
        change(Kernel::Half, 0.5, 0.5),
        change(Kernel::MendedLater, 0.2, 0.25),
        change(Kernel::BrokenLater, 0.2, 0.25),
        change(Kernel::BrokenLater, 0.2, 0.5),
        change(Kernel::BrokenLater, 0.5, 0.75),
    ];
    let plans =
        (0..seeds).flat_map(|seed| plans.clone().map(|plan| LinearizePlan { seed: seed + 1, ..plan }));
    let (mut all, mut below) = (0, Vec::new());
    for (nth, plan) in plans.enumerate() {
        // Of all rows, a third each time.
        for row in ROWS.iter().skip(nth % 3).step_by(if seeds == 1 { 3 } else { 1 }) {
            let rate = |way| run(row, way, &plan, Box::new(|_| ())).unwrap();
            let [off, on, auto] = [Linearize::Off, Linearize::On, Linearize::Auto].map(rate);
            let part = auto / off.max(on);
            all += 1;
            if part < 0.99 {
                below.push(format!(
                    "{} of {off} and {on}, {}, {} threads, {plan:?}",
                    part, row.job, row.threads
                ));
            }
            assert!(part > 0.98, "{below:#?}");
        }
    }
    // In much noise what trying costs is now and then more.
    assert!(below.len() * 10 <= all, "{} of {all}: {below:#?}", below.len());
}
