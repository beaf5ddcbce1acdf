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

#[test]
fn other_kernels_and_more_noise_do_not_mislead_it() {
    for (kernel, noise) in
        [(Kernel::Mended, 0.2), (Kernel::Half, 0.5), (Kernel::MendedLater, 0.2), (Kernel::BrokenLater, 0.2)]
    {
        let plan = LinearizePlan { kernel, noise, requests: 20_000, seed: 7 };
        // Large creates and random reads, where much was to be gained, and where copies lost.
        for row in [&ROWS[0], &ROWS[4], &ROWS[8]] {
            let rate = |way| run(row, way, &plan, Box::new(|_| ())).unwrap();
            let [off, on, auto] = [Linearize::Off, Linearize::On, Linearize::Auto].map(rate);
            let part = auto / off.max(on);
            // What it takes to notice is a larger part of so few requests.
            assert!(part > 0.97, "{kernel:?}, noise {noise}, {}: {part} of {off} and {on}", row.job);
        }
    }
}
