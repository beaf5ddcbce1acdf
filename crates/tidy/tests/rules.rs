//! Every rule over a tree that breaks it, and over one that does not.

use std::fs;

use blockwork_tidy::{Finding, Package, Text, Tree, documents, fuzz, house, text, tools};
use tempfile::TempDir;

/// What a rule says of one file.
fn of(path: &str, text: &str) -> Vec<String> {
    said(text::check(&Text { path: path.into(), text: text.into() }))
}

fn said(found: Vec<Finding>) -> Vec<String> {
    found.iter().map(|finding| format!("{}:{}: {}", finding.path, finding.line, finding.what)).collect()
}

/// A repository that goes with the test.
struct Sample {
    tree: Tree,
    _folder: TempDir,
}

/// Of two crates, a fuzz target and what else is needed; then with some files changed.
fn sample(changes: &[(&str, &str)]) -> Sample {
    let folder = tempfile::tempdir().unwrap();
    let package = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n[lints]\nworkspace = true\n{rest}")
    };
    let head = "//! Says what it is for.\n#![forbid(unsafe_code)]\n";
    let mut files = vec![
        ("Cargo.toml", "[workspace]\nmembers = [\"crates/*\"]\nexclude = [\"fuzz\"]\n[workspace.lints]\n".into()),
        ("crates/engine/Cargo.toml", package("blockwork-engine", "")),
        ("crates/engine/src/lib.rs", head.to_owned()),
        (
            "crates/layer/Cargo.toml",
            package("blockwork-layer", "[dependencies]\nblockwork-engine = { path = \"../engine\" }\n"),
        ),
        ("crates/layer/src/lib.rs", head.to_owned()),
        ("crates/layer/tests/it.rs", "//! A test.\nfn f() { Command::new(\"nbdinfo\"); }\n".into()),
        ("ARCHITECTURE.md", "# Parts\n`engine`\n\n 1  layer   what it becomes\n".into()),
        ("README.md", "[parts](ARCHITECTURE.md#parts) [folder](crates/layer) [web](https://example.com/x)\n".into()),
        ("SECURITY.md", "Here.\n".into()),
        ("LICENSE-APACHE", "Text.\n".into()),
        ("LICENSE-MIT", "Text.\n".into()),
        ("docs/threat-model.md", "`SIZE_MAX` in `crates/engine/src/limits.rs`\n".into()),
        ("crates/engine/src/limits.rs", "//! Limits.\npub const SIZE_MAX: u32 = 1;\n".into()),
        ("scripts/install-test-tools", "programs() {\ncat <<'TABLE'\nnbdinfo   libnbd-bin\nTABLE\n}\n".into()),
        (
            "fuzz/Cargo.toml",
            "[workspace]\n[package]\nname = \"f\"\nedition = \"2024\"\n[[bin]]\nname = \"gpt\"\npath = \"fuzz_targets/gpt.rs\"\n"
                .into(),
        ),
        ("fuzz/README.md", "| `gpt` | a disk |\n".into()),
        ("fuzz/fuzz_targets/gpt.rs", "//! A door.\n".into()),
        ("fuzz/corpus/gpt/seed", "EFI PART".into()),
    ];
    files.extend(changes.iter().map(|(path, text)| (*path, (*text).to_owned())));
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if text == GONE { fs::remove_file(path).unwrap() } else { fs::write(path, text).unwrap() }
    }
    Sample { tree: Tree::read(folder.path()).unwrap(), _folder: folder }
}

/// What a file is changed to that is to be deleted.
const GONE: &str = "(gone)";

/// A package in `crates/`, by the name of its folder.
fn package(name: &str, dependencies: &[&str]) -> Package {
    Package {
        name: format!("blockwork-{name}"),
        folder: format!("crates/{name}"),
        dependencies: dependencies.iter().map(|name| format!("blockwork-{name}")).collect(),
        targets: Vec::new(),
    }
}

#[test]
fn a_tidy_tree_has_no_findings() {
    assert_eq!(said(blockwork_tidy::findings(&sample(&[]).tree)), Vec::<String>::new());
}

#[test]
fn a_source_file_opens_with_its_head_comment() {
    assert_eq!(of("a.rs", "//! What it is for.\n"), Vec::<String>::new());
    assert_eq!(of("a.rs", "use std::fs;\n//! Late.\n").len(), 1);
    assert_eq!(of("a.rs", "//!\n//! An empty first line.\n").len(), 1);
    assert_eq!(of("a.md", "# No comment\n"), Vec::<String>::new());
}

#[test]
fn a_source_file_has_800_lines_at_most() {
    let lines = |count: usize| format!("//! Long.\n{}", "//\n".repeat(count - 1));
    assert_eq!(of("a.rs", &lines(800)), Vec::<String>::new());
    assert_eq!(of("a.rs", &lines(801)), ["a.rs:0: 801 lines, limit 800: split it by what it is about"]);
    assert_eq!(of("a.txt", &"x".repeat(text::BYTES_MAX + 1)).len(), 1);
}

#[test]
fn what_is_not_done_is_found_in_any_file() {
    let word = ["TO", "DO"].concat();
    assert_eq!(of("Makefile", &format!("# {word}: more\n")).len(), 1);
    assert_eq!(of("a.md", &format!("a {word}S, {word}_LIST\n")), Vec::<String>::new());
    assert_eq!(of("a.rs", &format!("//! Head.\nlet x = {}5);\n", ["dbg", "!("].concat())).len(), 1);
    assert_eq!(of("a.rs", &format!("//! Head.\n{})\n", ["todo", "!("].concat())).len(), 1);
}

#[test]
fn a_folder_of_one_machine_is_found_and_a_part_of_a_path_is_not() {
    let place = ["/ho", "me/"].concat();
    assert_eq!(of("a.md", &format!("see {place}me/notes\n")).len(), 1);
    assert_eq!(of("a.md", &format!("`{place}me`\n")).len(), 1);
    assert_eq!(of("a.md", &format!("https://example.com{place}x var{place}x\n")), Vec::<String>::new());
}

#[test]
fn an_ignored_test_is_found_unless_another_test_starts_it() {
    let ignored = |reason: &str| format!("//! Head.\n#[{}{reason}]\nfn f() {{}}\n", "ignore");
    assert_eq!(of("a.rs", &ignored("")).len(), 1);
    assert_eq!(of("a.rs", &ignored(" = \"slow\"")).len(), 1);
    let started = ignored(" = \"other process\"") + "fn g() { args([\"--include-ignored\"]) }\n";
    assert_eq!(of("a.rs", &started), Vec::<String>::new());
}

#[test]
fn a_crate_may_only_be_built_from_lower_floors() {
    let (format, engine) = (package("format", &[]), package("engine", &["format"]));
    let packages = [format, engine, package("leaf", &["engine"]), package("layer", &["engine", "format"])];
    assert_eq!(house::floors(&packages), []);
    let up = [package("engine", &["leaf"]), package("leaf", &[])];
    assert_eq!(
        said(house::floors(&up)),
        [
            "crates/engine/Cargo.toml:0: engine may not be built from crates/leaf: only from crates of lower floors"
        ]
    );
    let beside = [package("leaf", &["sim"]), package("sim", &[])];
    assert_eq!(house::floors(&beside).len(), 1);
    assert_eq!(house::floors(&[package("attic", &[])]).len(), 1, "a crate on no floor");
    let helper = Package { folder: "bench/load".into(), ..package("load", &[]) };
    assert_eq!(
        house::floors(&[package("cli", &["load"]), helper]).len(),
        1,
        "built from a crate beside the house"
    );
}

#[test]
fn what_only_tests_want_is_no_dependency() {
    let sample = sample(&[(
        "crates/engine/Cargo.toml",
        "[package]\nname = \"blockwork-engine\"\nedition = \"2024\"\n[lints]\nworkspace = true\n\
         [dev-dependencies]\nblockwork-layer = { path = \"../layer\" }\n",
    )]);
    assert_eq!(house::floors(sample.tree.packages()), []);
}

#[test]
fn unsafe_code_is_found_outside_its_two_crates() {
    let unsafe_line = format!("//! Head.\n#![forbid(unsafe_code)]\nfn f() {{ {} {{ g() }} }}\n", "unsafe");
    let without = sample(&[("crates/layer/src/lib.rs", "//! Head.\n")]);
    assert_eq!(
        said(house::forbids_unsafe(&without.tree)),
        ["crates/layer/src/lib.rs:1: add #![forbid(unsafe_code)]"]
    );
    let test = sample(&[("crates/layer/tests/it.rs", &unsafe_line)]);
    assert_eq!(house::forbids_unsafe(&test.tree).len(), 1);
    let counted =
        sample(&[("crates/layer/tests/it.rs", &(unsafe_line + "impl GlobalAlloc for Counting {}\n"))]);
    assert_eq!(house::forbids_unsafe(&counted.tree), []);
}

#[test]
fn a_crate_without_the_lints_or_without_a_place_in_the_architecture_is_found() {
    let sample = sample(&[
        ("crates/engine/Cargo.toml", "[package]\nname = \"blockwork-engine\"\nedition = \"2024\"\n"),
        ("ARCHITECTURE.md", "`layer` alone\n"),
    ]);
    assert_eq!(house::takes_the_lints(&sample.tree).len(), 1);
    assert_eq!(
        said(house::is_in_the_architecture(&sample.tree)),
        ["ARCHITECTURE.md:0: crates/engine is not in it: say what it is for"]
    );
}

#[test]
fn a_forgotten_part_of_a_fuzz_target_is_found() {
    let more = sample(&[("fuzz/fuzz_targets/mbr.rs", "//! A door.\n")]);
    assert_eq!(fuzz::check(&more.tree).len(), 3, "no program, no corpus, not listed");
    let empty = sample(&[("fuzz/corpus/gpt/seed", GONE)]);
    assert_eq!(fuzz::check(&empty.tree).len(), 1);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let links = |text: &str| documents::links(&sample(&[("README.md", text)]).tree).len();
    assert_eq!(links("[a](ARCHITECTURE.md#parts) [b](./crates/engine/src/lib.rs)\n"), 0);
    assert_eq!(links("[a](docs/none.md)\n"), 1);
    assert_eq!(links("[a](ARCHITECTURE.md#whole)\n"), 1);
    assert_eq!(links("[a](#own)\n\n## Own\n"), 0);
    assert_eq!(links("```\n[a](none)\n```\n"), 0);
    assert_eq!(documents::links(&sample(&[("LICENSE-MIT", GONE)]).tree).len(), 1);
}

#[test]
fn a_limit_of_the_threat_model_that_the_code_has_not_is_found() {
    let limits = |text: &str| documents::limits(&sample(&[("docs/threat-model.md", text)]).tree).len();
    assert_eq!(limits("`SIZE_MAX`, `--table` and `crates/engine/`\n"), 0);
    assert_eq!(limits("`LENGTH_MAX`\n"), 1);
    assert_eq!(limits("`crates/none.rs`\n"), 1);
    assert_eq!(limits(GONE), 1);
}

#[test]
fn a_program_that_the_script_does_not_install_is_found() {
    let sample = sample(&[("crates/layer/tests/it.rs", "//! A test.\nfn f() { run(\"losetup\", &[]); }\n")]);
    assert_eq!(
        said(tools::are_installed(&sample.tree)),
        [
            "crates/layer/tests/it.rs:2: starts `losetup`, which is not in the table of scripts/install-test-tools"
        ]
    );
    let beside = [(
        "tests/kernel/src/a.rs",
        "//! For tests only.\nfn f() { command(\"xz\"); command(\"nbdinfo\"); }\n",
    )];
    assert_eq!(tools::are_installed(&self::sample(&beside).tree).len(), 1);
}
