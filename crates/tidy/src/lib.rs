//! A test of the source itself: what the compiler, rustfmt and clippy do not see.
//!
//! A rule is a function from the [`Tree`] (or from one [`Text`] of it) to findings; `tests/tree.rs` runs all of them over
//! this repository, and `tests/rules.rs` over small trees that break them, since a rule that cannot fail proves nothing.
//! A finding says where, what, and what to do.
//!
//! (1) The rules need no build, no git and no network: the files, and `cargo metadata --no-deps --offline`.
//! (2) They take less than a second in all, so they run first.
#![forbid(unsafe_code)]

pub mod documents;
pub mod fuzz;
pub mod house;
pub mod text;
pub mod tools;
mod tree;

pub use tree::{Finding, Package, Text, Tree};

/// What all rules find.
pub fn findings(tree: &Tree) -> Vec<Finding> {
    let mut found: Vec<Finding> = tree.texts().iter().flat_map(text::check).collect();
    found.extend(house::floors(tree.packages()));
    found.extend(house::forbids_unsafe(tree));
    found.extend(house::takes_the_lints(tree));
    found.extend(house::is_in_the_architecture(tree));
    found.extend(fuzz::check(tree));
    found.extend(documents::links(tree));
    found.extend(documents::limits(tree));
    found.extend(tools::are_installed(tree));
    found
}
