//! The rule for programs that tests start: scripts/install-test-tools knows the package of each.

use crate::{Finding, Text, Tree};

const SCRIPT: &str = "scripts/install-test-tools";

/// How a test starts a program whose name is written down.
const STARTS: [&str; 3] = ["Command::new(\"", " run(\"", " command(\""];

/// Programs that tests start by name, and that the script has not in its table.
pub fn are_installed(tree: &Tree) -> Vec<Finding> {
    let Some(script) = tree.text(SCRIPT) else {
        return vec![Finding::at(SCRIPT, 0, "is missing")];
    };
    let table: Vec<&str> = script
        .lines()
        .skip_while(|line| !line.ends_with("<<'TABLE'"))
        .skip(1)
        .take_while(|line| *line != "TABLE")
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let mut found = Vec::new();
    let sources = tree.texts().iter().filter(|file| file.is("rs") && !file.path.starts_with("crates/tidy/"));
    for file in sources {
        for (line, text) in test_lines(file) {
            for program in STARTS.iter().flat_map(|start| programs(text, start)) {
                if !table.contains(&program) {
                    let what = format!("starts `{program}`, which is not in the table of {SCRIPT}");
                    found.push(Finding::at(&file.path, line, what));
                }
            }
        }
    }
    found
}

/// The lines that only tests are built from. What the product starts by itself it may do without, and says so.
fn test_lines(file: &Text) -> impl Iterator<Item = (usize, &str)> {
    let whole =
        file.path.starts_with("tests/") || file.path.contains("/tests/") || file.path.ends_with("tests.rs");
    file.lines().skip_while(move |(_, line)| !whole && !line.contains("#[cfg(test)]"))
}

/// Names after each `start` in a line; of a path, the last part.
fn programs<'a>(line: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(start).filter_map(move |(at, _)| {
        let (name, _) = line[at + start.len()..].split_once('"')?;
        name.rsplit('/').next()
    })
}
