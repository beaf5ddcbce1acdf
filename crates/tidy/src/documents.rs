//! Rules for the documents: a link leads somewhere, a limit that is named is in the code.

use std::collections::BTreeSet;

use crate::{Finding, Text, Tree};

/// Documents that must be there.
const NEEDED: [&str; 4] = ["README.md", "SECURITY.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Links of Markdown files to files, folders and headings that are not there.
pub fn links(tree: &Tree) -> Vec<Finding> {
    let missing = NEEDED.iter().filter(|path| !tree.has(path));
    let mut found: Vec<Finding> = missing.map(|path| Finding::at(*path, 0, "is missing")).collect();
    for file in tree.texts().iter().filter(|file| file.is("md")) {
        for (line, target) in targets(&file.text) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = resolve(&file.path, path);
            if !tree.has(&path) {
                found.push(Finding::at(&file.path, line, format!("the link leads nowhere: {target}")));
            } else if !heading.is_empty() && !has_heading(tree, &path, heading) {
                found.push(Finding::at(&file.path, line, format!("{path} has no heading for #{heading}")));
            }
        }
    }
    found
}

/// The document that names the limits on what strangers can ask for.
const LIMITS: &str = "docs/threat-model.md";

/// Limits that the threat model names, as `NAME_MAX`, and files that it points to, as `crates/...`, and that are not there.
pub fn limits(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(LIMITS) else {
        return vec![Finding::at(LIMITS, 0, "is missing: who is trusted at which door")];
    };
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_constant =
                quoted.contains('_') && quoted.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            if is_constant && !is_in_the_code(tree, quoted) {
                found.push(Finding::at(
                    LIMITS,
                    number,
                    format!("no constant in the code is called {quoted}"),
                ));
            }
            if quoted.starts_with("crates/") && !tree.has(quoted) {
                found.push(Finding::at(LIMITS, number, format!("{quoted} is not there")));
            }
        }
    }
    found
}

fn is_in_the_code(tree: &Tree, constant: &str) -> bool {
    let wanted = format!("const {constant}:");
    tree.texts().iter().any(|file| file.is("rs") && file.text.contains(&wanted))
}

/// What `[text](target)` leads to within the repository, with its line; code blocks are passed over.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code || line.starts_with("    ") {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            if let Some((target, _)) = rest.split_once(')')
                && !target.contains("://")
                && !target.starts_with("mailto:")
            {
                found.push((number, target));
            }
        }
    }
    found
}

/// A link's path from the repository's root.
fn resolve(from: &str, link: &str) -> String {
    if link.is_empty() {
        return from.to_owned();
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn has_heading(tree: &Tree, path: &str, wanted: &str) -> bool {
    // Lines of a source file (#L12) and headings of what is no Markdown are not checked.
    let file = tree.texts().iter().find(|file| file.path == path);
    file.is_none_or(|file| !file.is("md") || headings(file).contains(wanted))
}

/// The names by which a Markdown file's headings can be linked to.
fn headings(file: &Text) -> BTreeSet<String> {
    let lines = file.text.lines().filter(|line| line.starts_with('#'));
    lines
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title
                .chars()
                .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_')
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}
