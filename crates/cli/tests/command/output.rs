//! Standard output, and standard error: JSON in one form; where it is full, or nobody reads it, that is said in a line, and no panic, and what was asked for is
//! done all the same.

use std::process::{Command, Stdio};

use crate::support::lvm::Lab;
use crate::support::{BLOCKWORK, both, output, run, tool};

fn lab() -> Lab {
    let lab = Lab::new(&[("a", 64), ("b", 64)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b"]));
    lab
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error_in_one_line() {
    let lab = lab();
    for line in [
        "lv show",
        "lv show --json",
        "vg show",
        "vg show --json",
        "lv create vg/x -L 4M",
        "lv tag vg/x --addtag t --json",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = tool("sh");
        command.current_dir(lab.scratch.path("."));
        command.args(["-c", "exec \"$0\" \"$@\" >/dev/full", BLOCKWORK]).args(lab.args(&words));
        let done = output(&mut command);
        let said = both(&done);
        assert_eq!(done.status.code(), Some(1), "{line}: {said}");
        assert!(
            said.contains("standard output cannot be written to: No space left on device"),
            "{line}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
        assert_eq!(said.contains("what was asked for is done"), !line.contains("show"), "{line}: {said}");
    }
    assert!(lab.verb(&["lv", "show"]).contains("a(0)  t"), "it is made, and has its tag");
}

#[test]
fn an_error_that_nobody_can_be_told_is_told_by_the_exit_code() {
    let lab = lab();
    for line in ["scan nowhere", "lv create vg/x -L 99G --disk a b"] {
        let mut command = tool("sh");
        command.current_dir(lab.scratch.path("."));
        command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full", BLOCKWORK]).args(line.split(' '));
        assert_eq!(output(&mut command).status.code(), Some(1), "{line}");
    }
}

#[test]
fn who_has_seen_enough_is_no_failure() {
    let lab = lab();
    for words in [&["lv", "show"][..], &["vg", "show", "--json"], &["lv", "create", "vg/x", "-L", "4M"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(BLOCKWORK);
        command.args(lab.args(words)).current_dir(lab.scratch.path("."));
        let done = command.stdin(Stdio::null()).stdout(writer).output().expect("it runs");
        assert!(done.status.success() && both(&done).is_empty(), "{words:?}: {}", both(&done));
    }
}

/// Of all commands that answer once; events of a trace, and what a server says of itself, are a line each.
#[test]
fn json_is_indented_whoever_answers() {
    let lab = lab();
    lab.scratch.sparse("c", 64 << 20);
    lab.scratch.sparse("d", 64 << 20);
    for line in [
        "scan a b c",
        "status",
        "vg show --disk a b",
        "lv create vg/x -L 4M --disk a b",
        "lv show --disk a b",
        "md create -l1 -n2 --name data c d",
        "md examine c d",
        "md status",
        "md status --disk c d",
        "md check md/data --disk c d",
    ] {
        let said = run(&mut lab.scratch.blockwork(line.split(' ').chain(["--json"])));
        serde_json::from_str::<serde_json::Value>(&said)
            .unwrap_or_else(|error| panic!("{line}: {error}: {said}"));
        let second = said.lines().nth(1).unwrap_or_default();
        let indent = second.len() - second.trim_start().len();
        assert!(indent == 2 && said.ends_with('\n'), "{line}: {said}");
    }
}
