//! The answer to `/metrics`: counters, and what a scraper wants to know of a server besides.

use std::fmt::{Display, Write};

use blockwork_engine::Stats;
use blockwork_format::escape;
use blockwork_insight::report;

use crate::arrays::ArrayGauges;
use crate::status::Status;

pub(crate) fn text(status: &Status, stats: &Stats, arrays: &[ArrayGauges]) -> String {
    let mut text = report::prometheus(&stats.snapshot());
    text.push_str(&report::rings_prometheus(&stats.rings(blockwork_uring::clock())));
    let info = format!("{{version=\"{}\"}}", status.version);
    gauge(&mut text, "info", "Always 1; the version is a label", [(info, 1)]);
    let none = String::new;
    gauge(&mut text, "uptime_seconds", "Since the server began to serve", [(none(), status.uptime_seconds)]);
    let failed = status.disks.iter().filter(|disk| disk.failed).count();
    let help = "Disks that refuse writes because a flush has failed";
    gauge(&mut text, "failed_disks", help, [(none(), failed)]);
    if !arrays.is_empty() {
        of_arrays(&mut text, arrays);
    }
    text
}

fn of_arrays(text: &mut String, arrays: &[ArrayGauges]) {
    let each = |value: fn(&ArrayGauges) -> f64| {
        arrays.iter().map(move |array| (format!("{{array=\"{}\"}}", label(&array.name)), value(array)))
    };
    let help = "Places of an array whose member is missing, failed or not in sync";
    gauge(text, "md_degraded_members", help, each(|array| array.degraded as f64));
    let help = "Places of an array";
    gauge(text, "md_members", help, each(|array| f64::from(array.members)));
    let help = "1 while something is synced: resync, recover, check or repair";
    gauge(text, "md_sync_active", help, each(|array| f64::from(u8::from(array.sync.runs()))));
    let help = "Share of what is being synced that is done, 0 to 1";
    gauge(text, "md_sync_progress_ratio", help, each(|array| array.sync.share()));
    let help = "Speed of what is being synced";
    gauge(text, "md_sync_bytes_per_second", help, each(|array| array.sync.speed_kib as f64 * 1024.0));
    let help = "Sectors that the last check or repair found to differ";
    gauge(text, "md_mismatch_sectors", help, each(|array| array.sync.mismatch_sectors as f64));
}

fn gauge<V: Display>(
    text: &mut String,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (String, V)>,
) {
    let put = |text: &mut String, line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a String takes all");
    };
    put(text, format_args!("# HELP blockwork_{name} {help}"));
    put(text, format_args!("# TYPE blockwork_{name} gauge"));
    for (labels, value) in values {
        put(text, format_args!("blockwork_{name}{labels} {value}"));
    }
}

/// A label's value: printable, and quoted.
fn label(name: &str) -> String {
    escape(name).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::SyncStatus;

    #[test]
    fn an_array_is_told_of_by_its_name_quoted() {
        let sync = SyncStatus {
            action: "recover".into(),
            done_sectors: 10,
            total_sectors: 40,
            speed_kib: 2,
            mismatch_sectors: 128,
        };
        let array = ArrayGauges { name: "md/a\"b\u{1b}".into(), members: 2, degraded: 1, sync };
        let mut text = String::new();
        of_arrays(&mut text, &[array]);
        let label = r#"{array="md/a\"b\\u{1b}"}"#;
        for line in [
            "md_degraded_members{} 1",
            "md_members{} 2",
            "md_sync_active{} 1",
            "md_sync_progress_ratio{} 0.25",
            "md_sync_bytes_per_second{} 2048",
            "md_mismatch_sectors{} 128",
        ] {
            let line = format!("\nblockwork_{}\n", line.replace("{}", label));
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
