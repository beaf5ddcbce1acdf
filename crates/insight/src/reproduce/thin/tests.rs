//! Rates lie where the report's do, and ours where the device's and the cores' do.

use super::*;

fn rates() -> Vec<ReadRate> {
    let plan = ThinPlan { reads: 20_000, ..ThinPlan::default() };
    reproduce(&plan, &mut |_| ()).unwrap().reads
}

fn rate(rates: &[ReadRate], stack: Stack, behaviour: Behaviour) -> &ReadRate {
    let found = rates.iter().find(|rate| rate.stack == stack.name() && rate.behaviour == behaviour);
    found.expect("it is run")
}

#[test]
fn the_lock_is_the_limit_of_the_old_behaviour_and_the_device_and_the_cores_of_ours() {
    let rates = rates();
    for rate in rates.iter().filter(|rate| rate.report_iops.is_some()) {
        let ratio = rate.iops / rate.report_iops.unwrap();
        assert!((0.93..1.07).contains(&ratio), "{rate:?}");
    }
    let of = |stack, behaviour| rate(&rates, stack, behaviour).iops;
    let thick = of(Stack::Thick, Behaviour::New);
    let two = of(Stack::TwoPools, Behaviour::Old) / of(Stack::Mapped, Behaviour::Old);
    assert!((1.8..2.05).contains(&two), "two pools: {two} of one");
    assert!(of(Stack::Mapped, Behaviour::New) > 0.98 * thick, "mapped: {rates:#?}");
    let pools = of(Stack::TwoPools, Behaviour::New) / of(Stack::Mapped, Behaviour::New);
    assert!((0.95..1.05).contains(&pools), "two pools: {pools} of one");
    // In so short a run the workers spend most turns on finding out whether pauses pay.
    assert!(of(Stack::Unmapped, Behaviour::New) > 2.5 * thick, "never written: {rates:#?}");
}

#[test]
fn what_was_never_written_is_no_request() {
    let rates = rates();
    for behaviour in [Behaviour::Old, Behaviour::New] {
        assert_eq!(rate(&rates, Stack::Unmapped, behaviour).device, Requests::default());
        assert_eq!(rate(&rates, Stack::Mapped, behaviour).device.reads, 20_000);
    }
}

#[test]
fn on_this_machine_no_read_is_lost_and_what_was_never_written_is_no_request() {
    let plan = ThinPlan { reads: 4_000, ..ThinPlan::default() };
    let mut told = 0.0;
    let rates = reproduce_for_real(&plan, &mut |done| told = done).unwrap().reads;
    assert_eq!((rates.len(), told), (7, 1.0));
    for rate in &rates {
        let expected = if rate.stack == Stack::Unmapped.name() { 0 } else { 5 * plan.reads };
        // Each worker's share is a whole number, and neighbours may be merged.
        let is_as_expected = rate.device.reads <= expected + 5 * 64 && rate.device.reads * 10 >= expected * 9;
        assert!(is_as_expected && rate.iops > 0.0 && rate.report_iops.is_none(), "{rate:?}");
    }
}
