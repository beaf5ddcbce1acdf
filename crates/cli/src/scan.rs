//! `blockwork scan`: what disks hold, as a tree or as JSON.

mod columns;
mod limits;
mod tree;
mod words;

use std::io::{IsTerminal, Write};

use anyhow::Result;
use blockwork_volume::{Assembly, Plan, scan};

use crate::args::ScanArgs;
use crate::out;
pub(crate) use columns::lines;
use tree::{Branches, Style};
pub(crate) use words::{percent, size};

pub(crate) fn run(args: &ScanArgs) -> Result<()> {
    let plan = Plan {
        disks: args.disks.clone(),
        tables: args.table.clone(),
        read_only: true,
        unlocked: true,
        nested: true,
        ..Plan::default()
    };
    let assembly = Assembly::open(plan)?;
    let report = scan(&assembly);
    let branches = if std::io::stdout().is_terminal() { Branches::DRAWN } else { Branches::ASCII };
    let style = Style { branches, uuids: args.uuids, limits: args.limits };
    out::with(|out| {
        if args.json {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            return writeln!(out);
        }
        write!(out, "{}", tree::text(&report, &style))
    })
}
