//! `blockwork reproduce NAME`: a field report about Linux, run again on simulated devices, as a table or as JSON.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use blockwork_insight::reproduce::discard::{self, DiscardPlan};
use blockwork_insight::reproduce::linearize::{self, Kernel, LinearizePlan, LinearizeRate};
use blockwork_insight::reproduce::merge::{self, MergePlan};
use blockwork_insight::reproduce::ring::{self, RingError, RingPlan};
use blockwork_insight::reproduce::thin::{self, ThinPlan};
use blockwork_insight::reproduce::{Behaviour, Rate, ReadRate, Reproduction, Requests, Row};

use crate::args::{
    ReproduceArgs, ReproduceDiscardArgs, ReproduceLinearizeArgs, ReproduceMergeArgs, ReproduceReport,
    ReproduceRingArgs, ReproduceThinArgs,
};
use crate::out;
use crate::scan::lines;
use crate::usage::bail_usage;

mod rings;

pub(crate) fn run(args: &ReproduceArgs) -> Result<()> {
    match &args.report {
        ReproduceReport::Discard(args) => discard(args),
        ReproduceReport::Merge(args) => merge(args),
        ReproduceReport::Ring(args) => ring(args, ring::reproduce),
        ReproduceReport::Sequential(args) => ring(args, ring::reproduce_sequential),
        ReproduceReport::Thin(args) => thin(args),
        ReproduceReport::Linearize(args) => linearize(args),
    }
}

fn linearize(args: &ReproduceLinearizeArgs) -> Result<()> {
    let kernel = match Kernel::NAMES.iter().find(|(name, _)| *name == args.kernel) {
        Some((_, kernel)) => *kernel,
        None => bail_usage!(
            "--kernel {}: expected one of {}",
            args.kernel,
            Kernel::NAMES.map(|(name, _)| name).join(", ")
        ),
    };
    if !(0.0..=2.0).contains(&args.noise) {
        bail_usage!("--noise {}: expected 0 to 2", args.noise);
    }
    if !(0.0..=1.0).contains(&args.change_at) {
        bail_usage!("--change-at {}: expected 0 to 1", args.change_at);
    }
    if let Some(until) = args.change_until.filter(|until| !(args.change_at..=1.0).contains(until)) {
        bail_usage!("--change-until {until}: expected --change-at, which is {}, to 1", args.change_at);
    }
    let ReproduceLinearizeArgs { seed, requests, noise, change_at, change_until, .. } = *args;
    let plan = LinearizePlan { seed, requests, kernel, noise, change_at, change_until };
    let mut bar = Bar::default();
    let result = linearize::reproduce(&plan, &mut |done| bar.show(done));
    bar.clear();
    print(&result?, args.json)
}

fn thin(args: &ReproduceThinArgs) -> Result<()> {
    let plan = ThinPlan { seed: args.seed, ..ThinPlan::default() };
    let mut bar = Bar::default();
    let reproduce = if args.real { thin::reproduce_for_real } else { thin::reproduce };
    let result = reproduce(&plan, &mut |done| bar.show(done));
    bar.clear();
    print(&result?, args.json)
}

fn merge(args: &ReproduceMergeArgs) -> Result<()> {
    let plan = MergePlan { seed: args.seed, ..MergePlan::default() };
    let mut bar = Bar::default();
    let result = merge::reproduce(&plan, &mut |done| bar.show(done));
    bar.clear();
    print(&result?, args.json)
}

/// All of the report on rings, or a part of it.
type ReproduceRing = fn(&RingPlan, &mut dyn FnMut(f64)) -> Result<Reproduction, RingError>;

fn ring(args: &ReproduceRingArgs, reproduce: ReproduceRing) -> Result<()> {
    let plan = RingPlan { seed: args.seed, ..RingPlan::default() };
    let mut bar = Bar::default();
    let result = reproduce(&plan, &mut |done| bar.show(done));
    bar.clear();
    print(&result?, args.json)
}

fn discard(args: &ReproduceDiscardArgs) -> Result<()> {
    let mut plan = DiscardPlan { seed: args.seed, ..DiscardPlan::default() };
    if !args.stack.is_empty() {
        plan.stacks = args.stack.iter().map(|name| stack(name)).collect::<Result<_>>()?;
    }
    let mut bar = Bar::default();
    let result = discard::reproduce(&plan, &mut |done| bar.show(done));
    bar.clear();
    print(&result?, args.json)
}

/// The array of that name.
fn stack(name: &str) -> Result<&'static str> {
    match DiscardPlan::STACKS.iter().find(|known| **known == name) {
        Some(known) => Ok(known),
        None => bail_usage!("--stack {name}: expected one of {}", DiscardPlan::STACKS.join(", ")),
    }
}

fn print(reproduction: &Reproduction, json: bool) -> Result<()> {
    out::with(|out| {
        if json {
            serde_json::to_writer_pretty(&mut *out, reproduction)?;
            return writeln!(out);
        }
        write!(out, "{}", text(reproduction))
    })
}

fn text(reproduction: &Reproduction) -> String {
    let mut text = format!("{}\n{}\n\n", reproduction.title, reproduction.source);
    if !reproduction.rows.is_empty() {
        text.push_str(&lines(&table(&reproduction.rows), &[3, 4, 5]));
    }
    text.push_str(&rings::text(&reproduction.rings));
    if !reproduction.reads.is_empty() {
        text.push_str(&lines(&reads(&reproduction.reads), &[3, 4]));
    }
    if !reproduction.linearize.is_empty() {
        let is_calibrated = reproduction.calibration.is_some();
        text.push_str(&lines(&jobs(&reproduction.linearize, is_calibrated), &[1, 2, 3, 4, 5, 6, 7]));
    }
    if let Some(calibration) = &reproduction.calibration {
        text.push_str("\n* The model has this from the report:\n");
        text.push_str(&wrapped(calibration));
    }
    if !reproduction.rates.is_empty() {
        text.push_str(&format!("\n{}", lines(&rates(&reproduction.rates), &[2, 3])));
    }
    for excerpt in &reproduction.traces {
        text.push_str(&format!("\n{}\n{}\n", excerpt.title, excerpt.lines.join("\n")));
    }
    for (title, sentences) in
        [("What was simulated", &reproduction.assumptions), ("What to know", &reproduction.notes)]
    {
        if sentences.is_empty() {
            continue;
        }
        text.push_str(&format!("\n{title}\n"));
        sentences.iter().for_each(|sentence| text.push_str(&wrapped(sentence)));
    }
    text
}

fn table(rows: &[Row]) -> Vec<[String; 6]> {
    let is_array = rows.iter().any(|row| row.devices.len() > 1);
    let (stack, each) = if is_array { ("ARRAY", "REQUESTS PER MEMBER") } else { ("STACK", "REQUESTS") };
    let titles = ["CLIENT", stack, "BEHAVIOUR", "REPORT", "HERE", each].map(String::from);
    let rows = rows.iter().map(|row| {
        let behaviour = if row.behaviour == Behaviour::Old { "old" } else { "new" };
        let report = row.report_seconds.map(seconds).unwrap_or_default();
        let here = format!("{}{}", seconds(row.seconds), if row.is_calibration { "*" } else { " " });
        [row.client.clone(), row.stack.clone(), behaviour.into(), report, here, requests(&row.devices)]
    });
    std::iter::once(titles).chain(rows).collect()
}

fn rates(rates: &[Rate]) -> Vec<[String; 5]> {
    let titles = ["CLIENT", "STACK", "REPORT", "HERE", "REQUESTS"].map(String::from);
    let speed = |mb_per_second: f64| format!("{mb_per_second:.2} MB/s");
    let rows = rates.iter().map(|rate| {
        let report = rate.report_mb_per_second.map(speed).unwrap_or_default();
        [rate.client.clone(), rate.stack.clone(), report, speed(rate.mb_per_second), requests(&rate.devices)]
    });
    std::iter::once(titles).chain(rows).collect()
}

fn reads(rates: &[ReadRate]) -> Vec<[String; 6]> {
    let titles = ["CLIENT", "STACK", "BEHAVIOUR", "REPORT", "HERE", "REQUESTS"].map(String::from);
    let rows = rates.iter().map(|rate| {
        let behaviour = if rate.behaviour == Behaviour::Old { "old" } else { "new" };
        let report = rate.report_iops.map(iops).unwrap_or_default();
        let here = format!("{}{}", iops(rate.iops), if rate.is_calibration { "*" } else { " " });
        let requests = requests(std::slice::from_ref(&rate.device));
        [rate.client.clone(), rate.stack.clone(), behaviour.into(), report, here, requests]
    });
    std::iter::once(titles).chain(rows).collect()
}

/// Rates in MB a second.
fn jobs(rates: &[LinearizeRate], is_calibrated: bool) -> Vec<[String; 8]> {
    let titles =
        ["CLIENT", "THREADS", "UNPATCHED", "PATCHED", "OFF", "ON", "AUTO", "AUTO:BETTER"].map(String::from);
    let mark = if is_calibrated { "*" } else { "" };
    let speed = |rate: f64| format!("{rate:.1}");
    let rows = rates.iter().map(|rate| {
        [
            rate.client.clone(),
            rate.threads.to_string(),
            speed(rate.report_unpatched),
            speed(rate.report_patched),
            speed(rate.off) + mark,
            speed(rate.on) + mark,
            speed(rate.auto),
            format!("{:.3}", rate.auto_of_better),
        ]
    });
    std::iter::once(titles).chain(rows).collect()
}

fn iops(iops: f64) -> String {
    format!("{:.1} K IOPS", iops / 1e3)
}

/// As `time` prints it, but in thousandths where it is short.
fn seconds(seconds: f64) -> String {
    match seconds {
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        1.0..60.0 => format!("{seconds:.3} s"),
        _ => format!("{}m{:06.3}s", (seconds / 60.0) as u64, seconds % 60.0),
    }
}

/// Of each kind that there was, the fewest and the most requests that a device got.
fn requests(devices: &[Requests]) -> String {
    let kind = |name: &str, of: fn(&Requests) -> u64| {
        let (least, most) = (devices.iter().map(of).min()?, devices.iter().map(of).max()?);
        match (least, most) {
            (_, 0) => None,
            (1, 1) => Some(format!("1 {name}")),
            (least, most) if least == most => Some(format!("{most} {name}s")),
            (least, most) => Some(format!("{least} to {most} {name}s")),
        }
    };
    let kinds = [
        kind("discard", |device| device.discards),
        kind("write", |device| device.writes),
        kind("read", |device| device.reads),
    ];
    kinds.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A sentence as an item of a list.
fn wrapped(sentence: &str) -> String {
    const WIDTH: usize = 110;
    let mut text = String::from("-");
    let mut column = 1;
    for word in sentence.split_whitespace() {
        let length = word.chars().count() + 1;
        if column + length > WIDTH {
            text.push_str("\n ");
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

/// How much is done, on a terminal; nothing elsewhere.
#[derive(Default)]
struct Bar {
    shown: Option<u32>,
}

impl Bar {
    fn show(&mut self, done: f64) {
        const CELLS: usize = 40;
        let percent = (done * 100.0) as u32;
        if self.shown == Some(percent) || !std::io::stderr().is_terminal() {
            return;
        }
        self.shown = Some(percent);
        let full = ((done * CELLS as f64) as usize).min(CELLS);
        out::tell(&format!("\r[{}{}] {percent:3} %", "#".repeat(full), ".".repeat(CELLS - full)));
    }

    fn clear(&self) {
        if self.shown.is_some() {
            out::tell("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_unit_that_suits_them() {
        assert_eq!(seconds(674.734), "11m14.734s");
        assert_eq!(seconds(601.5), "10m01.500s");
        assert_eq!(seconds(4.226), "4.226 s");
        assert_eq!(seconds(0.006_29), "6.3 ms");
    }

    #[test]
    fn requests_of_members_that_differ_are_a_range() {
        let device = |discards, writes| Requests { discards, writes, ..Requests::default() };
        assert_eq!(requests(&[device(7, 0), device(7, 0)]), "7 discards");
        assert_eq!(requests(&[device(1, 0)]), "1 discard");
        assert_eq!(requests(&[device(34, 2), device(33, 2)]), "33 to 34 discards, 2 writes");
        assert_eq!(requests(&[Requests { reads: 4095, ..Requests::default() }]), "4095 reads");
    }

    #[test]
    fn a_long_sentence_is_wrapped() {
        let text = wrapped(&"word ".repeat(50));
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");
        assert!(text.starts_with("- word") && text.contains("\n  word"), "{text}");
    }
}
