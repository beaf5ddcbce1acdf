//! `blockwork scan`: what disks hold, as a tree or as JSON.

mod columns;
mod limits;
mod tree;
mod words;

use std::io::{BufWriter, IsTerminal, Write};

use anyhow::Result;
use blockwork_volume::{Assembly, Plan, scan};

use crate::args::ScanArgs;
pub(crate) use columns::lines;
use tree::{Branches, Style};
pub(crate) use words::size;

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
    let out = std::io::stdout().lock();
    let branches = if out.is_terminal() { Branches::DRAWN } else { Branches::ASCII };
    // A report may have thousands of lines; standard output alone would write each by itself.
    let mut out = BufWriter::new(out);
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let style = Style { branches, uuids: args.uuids, limits: args.limits };
        write!(out, "{}", tree::text(&report, &style))?;
    }
    out.flush()?;
    Ok(())
}
