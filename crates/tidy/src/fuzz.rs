//! Rules for the fuzz targets: each is a program, has a corpus, and is in the list of fuzz/README.md.

use crate::{Finding, Tree};

const FOLDER: &str = "fuzz/fuzz_targets/";

/// What is forgotten about a fuzz target.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let listed = tree.text("fuzz/README.md").unwrap_or_default();
    let programs: Vec<&str> = tree
        .fuzz()
        .iter()
        .flat_map(|package| &package.targets)
        .map(|(_, _, source)| source.as_str())
        .collect();
    for file in tree.texts() {
        let Some(target) = file.path.strip_prefix(FOLDER).and_then(|name| name.strip_suffix(".rs")) else {
            continue;
        };
        if !programs.contains(&file.path.as_str()) {
            found.push(Finding::at(&file.path, 0, "has no [[bin]] in fuzz/Cargo.toml"));
        }
        if tree.files_in(&format!("fuzz/corpus/{target}")) == 0 {
            found.push(Finding::at(
                &file.path,
                0,
                format!("fuzz/corpus/{target} is missing or empty: add seeds"),
            ));
        }
        if !listed.contains(&format!("| `{target}` |")) {
            found.push(Finding::at("fuzz/README.md", 0, format!("target {target} is not in the table")));
        }
    }
    found
}
