//! Rates lie where the report's do, and auto beside the better of them, whatever the kernel.

use super::*;

fn rates(kernel: Kernel, noise: f64, requests: u32) -> Vec<LinearizeRate> {
    let plan = LinearizePlan { kernel, noise, requests, ..LinearizePlan::default() };
    reproduce(&plan, &mut |_| ()).unwrap().linearize
}

#[test]
fn both_columns_are_the_reports_and_auto_is_the_better_one() {
    for rate in rates(Kernel::Reported, 0.2, 30_000) {
        for (here, reported) in [(rate.off, rate.report_unpatched), (rate.on, rate.report_patched)] {
            assert!((0.95..1.05).contains(&(here / reported)), "{rate:?}");
        }
        assert!(rate.auto_of_better > 0.99, "{rate:?}");
    }
}

#[test]
fn other_kernels_and_more_noise_do_not_mislead_it() {
    // In fewer requests trying costs a larger part.
    for (kernel, noise) in
        [(Kernel::Mended, 0.2), (Kernel::Half, 0.5), (Kernel::MendedLater, 0.2), (Kernel::BrokenLater, 0.2)]
    {
        for rate in rates(kernel, noise, 8_000) {
            assert!(rate.auto_of_better > 0.96, "{kernel:?}, noise {noise}: {rate:?}");
        }
    }
}
