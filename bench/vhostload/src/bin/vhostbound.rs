//! `vhostbound`: what a kick and a call alone take, by eventfds as between a guest and its back end, with nothing between them: no
//! ring, no disk. No back end answers a guest with one request under way in less. Prints one JSON object, microseconds, medians:
//!
//! - `both_sleep_us`: the back end sleeps in a read of its eventfd until it is kicked, the guest until it is called;
//! - `back_end_looks_us`: the back end never sleeps, and answers before the guest has fallen asleep;
//! - `guest_asleep_us`: it answers when the guest is fast asleep, [`SERVICE`] after it was asked, which is taken off: waking the guest;
//! - `both_look_us`: nobody sleeps, nobody calls.
//!
//! Guest and back end are threads held to two processors.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Requests of one measurement.
const ROUNDS: u32 = 20_000;

/// Longer than a guest takes to fall asleep.
const SERVICE: Duration = Duration::from_micros(30);

/// What the two share.
struct Shared {
    kick: OwnedFd,
    call: OwnedFd,
    /// How many requests there were, and how many are answered; [`END`]: no more come.
    asked: AtomicU32,
    answered: AtomicU32,
}

const END: u32 = u32::MAX;

fn hold_to(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).with_context(|| format!("going to processor {processor}"))
}

fn ring(bell: &OwnedFd) {
    // Its count is far from full.
    rustix::io::write(bell, &1_u64.to_ne_bytes()).expect("an eventfd takes eight bytes");
}

/// The back end: answers until there is nothing more to come.
fn answer(shared: &Shared, sleeps: bool, calls: bool, service: Duration) -> Result<()> {
    hold_to(0)?;
    let mut last = 0;
    loop {
        if sleeps {
            rustix::io::read(&shared.kick, &mut [0; 8]).context("waiting for a kick")?;
        }
        let now = shared.asked.load(Ordering::Acquire);
        if now == END {
            return Ok(());
        }
        if now == last {
            std::hint::spin_loop();
            continue;
        }
        last = now;
        let start = Instant::now();
        while start.elapsed() < service {
            std::hint::spin_loop();
        }
        shared.answered.store(now, Ordering::Release);
        if calls {
            ring(&shared.call);
        }
    }
}

/// The guest: asks, and waits for each answer. The median of what that takes, microseconds.
fn ask(shared: &Shared, kicks: bool, sleeps: bool) -> Result<f64> {
    hold_to(1)?;
    let patience = Timespec::try_from(Duration::from_secs(10))?;
    let mut took = Vec::new();
    for round in 1..=ROUNDS {
        let start = Instant::now();
        shared.asked.store(round, Ordering::Release);
        if kicks {
            ring(&shared.kick);
        }
        if sleeps {
            // As a guest's processor: it does not look before it is called, and takes the call.
            let mut bell = [PollFd::new(&shared.call, PollFlags::IN)];
            ensure!(poll(&mut bell, Some(&patience))? > 0, "no call came");
            rustix::io::read(&shared.call, &mut [0; 8])?;
        }
        while shared.answered.load(Ordering::Acquire) != round {
            ensure!(!sleeps, "a call came before its answer");
            std::hint::spin_loop();
        }
        took.push(start.elapsed());
    }
    took.sort_unstable();
    Ok(took[took.len() / 2].as_secs_f64() * 1e6)
}

fn measure(back_end_sleeps: bool, guest_sleeps: bool, service: Duration) -> Result<f64> {
    let bell = || eventfd(0, EventfdFlags::CLOEXEC).context("eventfd");
    let shared =
        Shared { kick: bell()?, call: bell()?, asked: AtomicU32::new(0), answered: AtomicU32::new(0) };
    let shared = Arc::new(shared);
    let back_end = {
        let shared = shared.clone();
        std::thread::spawn(move || answer(&shared, back_end_sleeps, guest_sleeps, service))
    };
    let took = ask(&shared, back_end_sleeps, guest_sleeps);
    // Also where that has failed, or the back end would wait for ever.
    shared.asked.store(END, Ordering::Release);
    ring(&shared.kick);
    back_end.join().expect("it does not panic")?;
    Ok(took? - service.as_secs_f64() * 1e6)
}

fn main() -> Result<()> {
    let both_sleep = measure(true, true, Duration::ZERO)?;
    let back_end_looks = measure(false, true, Duration::ZERO)?;
    let guest_asleep = measure(false, true, SERVICE)?;
    let both_look = measure(false, false, Duration::ZERO)?;
    println!(
        "{{\"both_sleep_us\": {both_sleep:.2}, \"back_end_looks_us\": {back_end_looks:.2}, \"guest_asleep_us\": {guest_asleep:.2}, \
         \"both_look_us\": {both_look:.2}}}"
    );
    Ok(())
}
