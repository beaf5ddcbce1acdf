//! All rules over this repository.

use std::path::Path;

use blockwork_tidy::{Tree, findings};

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let tree = Tree::read(root).unwrap();
    // A tree that was not read has no findings either.
    assert!(tree.texts().len() > 100, "{} texts", tree.texts().len());
    assert!(tree.packages().len() > 10, "{} packages", tree.packages().len());
    assert!(tree.fuzz().iter().any(|package| package.targets.len() > 5));
    let found = findings(&tree);
    let said: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{} findings\n{}", found.len(), said.join("\n"));
}
