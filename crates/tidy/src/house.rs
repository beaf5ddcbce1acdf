//! Rules for the crates: who may use whom, who may be unsafe, and that each is known.

use crate::{Finding, Package, Tree};

/// The floors of the house, ground first. A crate is built from crates of lower floors only; its tests and benches
/// may use any.
pub const FLOORS: [&[&str]; 8] = [
    &["memory", "format"],
    &["engine"],
    &["uring", "sim", "leaf", "layer"],
    &["volume"],
    &["export"],
    &["insight"],
    &["daemon"],
    &["cli"],
];

/// Crates in `crates/` that are no part of the house.
const BESIDE: [&str; 1] = ["tidy"];

/// Crates that map memory or drive the kernel by it. Each `unsafe` block there says why it is sound (clippy denies others).
const MAY_BE_UNSAFE: [&str; 2] = ["memory", "uring"];

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// The name of a crate's folder in `crates/`.
fn room(package: &Package) -> Option<&str> {
    package.folder.strip_prefix("crates/")
}

/// Dependencies between crates go one way: down.
pub fn floors(packages: &[Package]) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in packages {
        let Some(name) = room(package) else { continue };
        let manifest = format!("{}/Cargo.toml", package.folder);
        let own = floor(name);
        if own.is_none() && !BESIDE.contains(&name) {
            let what = "this crate is on no floor: add it to FLOORS in crates/tidy/src/house.rs";
            found.push(Finding::at(&manifest, 0, what));
        }
        for used in packages.iter().filter(|used| package.dependencies.contains(&used.name)) {
            let below = match (own, room(used).and_then(floor)) {
                (Some(own), Some(theirs)) => theirs < own,
                _ => false,
            };
            if !below {
                let what =
                    format!("{name} may not be built from {}: only from crates of lower floors", used.folder);
                found.push(Finding::at(&manifest, 0, what));
            }
        }
    }
    found
}

/// Every crate but two forbids unsafe code, in its library and programs by the attribute, in its tests, benches and
/// examples by not having any. A test or bench that counts allocations has to be an allocator, which is unsafe.
pub fn forbids_unsafe(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in tree.packages() {
        if room(package).is_some_and(|name| MAY_BE_UNSAFE.contains(&name)) {
            continue;
        }
        for (kind, _, source) in &package.targets {
            let forbids = tree.text(source).is_some_and(|text| text.contains("#![forbid(unsafe_code)]"));
            if matches!(kind.as_str(), "lib" | "bin") && !forbids {
                found.push(Finding::at(source, 1, "add #![forbid(unsafe_code)]"));
            }
        }
        let folder = format!("{}/", package.folder);
        for file in tree.texts().iter().filter(|file| file.is("rs") && file.path.starts_with(&folder)) {
            if file.text.contains("impl GlobalAlloc for") {
                continue;
            }
            let lines = file.lines().filter(|(_, line)| is_unsafe(line));
            found.extend(lines.map(|(number, _)| {
                Finding::at(&file.path, number, "unsafe code: only in crates/memory and crates/uring")
            }));
        }
    }
    found
}

fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["{", "fn", "impl", "extern", "trait"].iter().any(|next| code.contains(&format!("unsafe {next}")))
}

/// Every package takes the workspace's lints.
pub fn takes_the_lints(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.packages().iter().map(|package| format!("{}/Cargo.toml", package.folder));
    manifests
        .filter(|path| !tree.text(path).is_some_and(|text| text.contains("[lints]\nworkspace = true")))
        .map(|path| Finding::at(path, 0, "add [lints] workspace = true"))
        .collect()
}

/// ARCHITECTURE.md says of every crate what it is for: by its folder, or in the drawing of the floors.
pub fn is_in_the_architecture(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "ARCHITECTURE.md";
    let Some(text) = tree.text(PATH) else {
        return vec![Finding::at(
            PATH,
            0,
            "is missing: the problem, the path of an I/O, the parts, the decisions",
        )];
    };
    let is_named = |name: &str| {
        // In the drawing, a name stands apart: a blank before it, two behind.
        [format!("crates/{name}`"), format!("`{name}`"), format!(" {name}  ")]
            .iter()
            .any(|form| text.contains(form))
    };
    let rooms = tree.packages().iter().filter_map(room);
    rooms
        .filter(|name| !is_named(name))
        .map(|name| Finding::at(PATH, 0, format!("crates/{name} is not in it: say what it is for")))
        .collect()
}
