//! A few reads under `blockwork trace`, and the lines of it that tell the story.

use anyhow::Result;

use super::server::Trace;
use super::{Demo, VOLUMES, pieces};

/// Contiguous reads that are traced, and from where on the first volume.
const TRACED: u64 = 16;
const TRACED_FROM: u64 = 1 << 20;

impl Demo {
    /// Contiguous reads under a trace.
    pub(super) fn trace(&self) -> Result<()> {
        let volume = VOLUMES[0];
        self.say(&format!(
            "$ blockwork trace {volume}        (while a client reads {TRACED} pieces of 4 KiB)"
        ));
        let mut client = self.client(volume)?;
        let mut trace = Trace::start(&self.folder, volume)?;
        pieces::read(&mut client, TRACED_FROM, TRACED * pieces::PIECE)?;
        let mut lines: Vec<String> = Vec::new();
        let mut completed = 0;
        while completed < TRACED {
            let line = trace.line()?;
            // The first is what came in: it names the volume's device.
            let first = lines.first().unwrap_or(&line);
            completed += u64::from(field(&line, 0) == field(first, 0) && action(&line) == "C");
            lines.push(line);
        }
        self.say(&excerpt(&lines));
        Ok(())
    }
}

/// A word of a line as blkparse prints it: device, CPU, sequence, time, process, action ...
fn field(line: &str, n: usize) -> &str {
    line.split_whitespace().nth(n).unwrap_or_default()
}

fn action(line: &str) -> &str {
    field(line, 5)
}

/// The way of the first piece through the layers (its Q and A lines), and then two lines of each other action, in order: how the
/// pieces were plugged, merged, sent and completed.
fn excerpt(lines: &[String]) -> String {
    let first = lines.iter().skip(1).position(|line| action(line) == "Q").map_or(lines.len(), |at| at + 1);
    let mut shown: Vec<&str> = lines[..first].iter().map(|line| line.trim_end()).collect();
    let mut seen = Vec::new();
    for line in &lines[first..] {
        let action = action(line);
        seen.push(action);
        if !["Q", "A"].contains(&action) && seen.iter().filter(|other| **other == action).count() <= 2 {
            shown.push(line.trim_end());
        }
    }
    format!("{}\n... and {} more lines", shown.join("\n"), lines.len() - shown.len())
}
