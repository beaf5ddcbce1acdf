//! What is installed beside the program: the shells themselves complete its command line, pages are what a checker of pages expects, and
//! `make install` puts all of it where it is looked for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::support::{BLOCKWORK, Scratch, both, output, run, tool};

/// Every command, as it is typed: `blockwork`, `blockwork md create`; found by what the help lists.
fn commands(scratch: &Scratch) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut next = 0;
    while let Some(command) = found.get(next).cloned() {
        let words = command.split_whitespace().chain(["--help"]);
        let help = run(&mut scratch.blockwork(words));
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let entries = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
        let verbs = entries.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help");
        found.extend(verbs.map(|verb| format!("{command} {verb}")));
        next += 1;
    }
    assert!(found.len() > 40, "{found:?}");
    found.into_iter().map(|command| format!("blockwork{command}")).collect()
}

fn pages(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("the folder of pages");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
}

#[test]
fn each_command_has_a_page_with_which_a_checker_is_content() {
    let scratch = Scratch::new();
    run(&mut scratch.blockwork(["man", "share/man1"]));
    let folder = scratch.path("share/man1");
    let commands = commands(&scratch);
    let expected = commands.iter().map(|command| format!("{}.1", command.replace(' ', "-")));
    assert_eq!(pages(&folder), expected.collect());
    for command in &commands {
        let path = folder.join(format!("{}.1", command.replace(' ', "-")));
        let checked = both(&output(tool("mandoc").args(["-Tlint", "-Wwarning"]).arg(&path)));
        // Pages are made of the program, which knows no day on which it was changed.
        let faults: Vec<&str> = checked.lines().filter(|line| !line.contains("missing date")).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        let page = fs::read_to_string(&path).expect("the page");
        let is_group = page.contains(".SH SUBCOMMANDS");
        for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {title}\n")), "{command}: {title} is missing");
        }
        assert!(is_group || page.contains(".SH EXAMPLES\n.EX\n"), "{command}: no example");
    }
}

#[test]
fn a_page_is_read_as_the_help_is() {
    let scratch = Scratch::new();
    run(&mut scratch.blockwork(["man", "."]));
    let read = |name: &str| run(tool("mandoc").args(["-Tascii", "-Owidth=200"]).arg(scratch.path(name)));
    let plain = |text: String| {
        // Bold and underlined letters are struck twice.
        let mut letters: Vec<char> = Vec::new();
        for letter in text.chars() {
            match letter {
                '\u{8}' => drop(letters.pop()),
                letter => letters.push(letter),
            }
        }
        letters.into_iter().collect::<String>()
    };
    let serve = plain(read("blockwork-serve.1"));
    for part in [
        "blockwork serve --disk sda.img sdb.img vg0/root --nbd unix:/tmp/root.sock\n",
        "SIGUSR1 prints statistics.\n",
        "--log-writes <FILE>\n",
        "130    A second SIGTERM",
        "LISTEN_FDS, LISTEN_PID\n",
        "/run/blockwork/PID.sock\n",
    ] {
        assert!(serve.contains(part), "{part:?} in {serve}");
    }
    let create = plain(read("blockwork-md-create.1"));
    assert!(
        create.contains("blockwork md create [OPTIONS] --level <LEVEL> --raid-devices <N> <DISK>...\n"),
        "{create}"
    );
    assert!(create.contains("blockwork(1), blockwork-md(1)\n"), "{create}");
}

#[test]
fn a_page_that_cannot_be_written_is_told_by_its_name() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("man1/blockwork-md.1")).expect("a folder where a page belongs");
    let done = output(&mut scratch.blockwork(["man", "man1"]));
    assert_eq!(done.status.code(), Some(1), "{}", both(&done));
    assert!(both(&done).contains("man1/blockwork-md.1: the page cannot be written"), "{}", both(&done));
}

/// Lines that are typed into a shell, with what the command is called with in the end: a word a line, each in `<>`.
const TYPED: &[(&str, &str)] = &[
    ("blockwork sca\tdis\t", "scan disk.img"),
    ("blockwork scan --lim\tdis\t", "scan --limits disk.img"),
    ("blockwork md cre\t--lev\t1 my\t", "md create --level 1 my disk.img"),
    ("blockwork serve --disk my\t--nbd-cl\t3", "serve --disk my disk.img --nbd-clients 3"),
    ("blockwork serve --disk disk.img dis\t", "serve --disk disk.img disk.img"),
    ("blockwork serve --table sta\t--read\t", "serve --table stack.table --read-only"),
    ("blockwork serve --io thr\t", "serve --io threads"),
    // An empty word: the only file there.
    ("cd alone\nblockwork scan \t", "scan only.img"),
];

#[test]
fn bash_completes_verbs_options_their_values_and_files() {
    let scratch = Scratch::new();
    for file in ["disk.img", "my disk.img", "stack.table", "alone/only.img"] {
        fs::create_dir_all(scratch.path(file).parent().expect("a folder")).expect("it is made");
        fs::write(scratch.path(file), "").expect("a file");
    }
    fs::write(scratch.path("completion"), run(&mut scratch.blockwork(["completion", "bash"])))
        .expect("a script");
    for (typed, expected) in TYPED {
        let typed =
            format!("PS1=; source ./completion; blockwork() {{ echo \"called: $*\"; }}\n{typed}\nexit\n");
        fs::write(scratch.path("typed"), &typed).expect("what is typed");
        let keys = fs::File::open(scratch.path("typed")).expect("what is typed");
        // An interactive one reads its lines by readline, also where they come from a file.
        let mut bash = tool("timeout");
        bash.args(["60", "bash", "--norc", "--noprofile", "-i"]).env("HOME", scratch.path("."));
        bash.env("TERM", "dumb").current_dir(scratch.path(".")).stdin(keys).stderr(Stdio::piped());
        let done = bash.output().expect("bash runs");
        let said = both(&done);
        assert!(said.lines().any(|line| line == format!("called: {expected}")), "{typed:?}: {said}");
    }
}

#[test]
fn fish_completes_verbs_and_options_and_zsh_takes_the_function() {
    let scratch = Scratch::new();
    fs::write(scratch.path("disk.img"), "").expect("a file");
    for shell in ["fish", "zsh"] {
        let script = run(&mut scratch.blockwork(["completion", shell]));
        fs::write(scratch.path(&format!("_blockwork.{shell}")), script).expect("a script");
    }
    for (typed, expected) in [
        ("blockwork md cre", "create"),
        ("blockwork serve --log-w", "--log-writes"),
        ("blockwork scan dis", "disk.img"),
    ] {
        let mut fish = tool("fish");
        fish.args(["--no-config", "-c"]).arg(format!("source _blockwork.fish; complete -C '{typed}'"));
        let said = run(fish.env("HOME", scratch.path(".")).current_dir(scratch.path(".")));
        let words: Vec<&str> = said.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(words, [expected], "{typed}");
    }
    fs::rename(scratch.path("_blockwork.zsh"), scratch.path("_blockwork")).expect("its name");
    let load = "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d dump; autoload +X _blockwork; print $_comps[blockwork]";
    let mut zsh = tool("zsh");
    let said =
        run(zsh.args(["-f", "-c", load]).env("HOME", scratch.path(".")).current_dir(scratch.path(".")));
    assert_eq!(said, "_blockwork\n");
}

#[test]
fn make_install_puts_all_where_it_is_looked_for() {
    let scratch = Scratch::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository");
    let make = |blockwork: &str| {
        let mut make = tool("make");
        make.arg("-C")
            .arg(root)
            .arg("install")
            .arg("PREFIX=/usr")
            .arg(format!("DESTDIR={}", scratch.at("stage")));
        make.arg(format!("BLOCKWORK={blockwork}")).env_remove("MAKEFLAGS");
        make
    };
    let refused = output(&mut make("/nowhere/blockwork"));
    assert!(
        !refused.status.success() && both(&refused).contains("`make build` makes it"),
        "{}",
        both(&refused)
    );
    assert!(!scratch.path("stage").exists(), "nothing is installed in part");

    run(&mut make(BLOCKWORK));
    for file in [
        "bin/blockwork",
        "share/man/man1/blockwork.1",
        "share/man/man1/blockwork-lv-resize.1",
        "share/bash-completion/completions/blockwork",
        "share/zsh/site-functions/_blockwork",
        "share/fish/vendor_completions.d/blockwork.fish",
    ] {
        let there = fs::metadata(scratch.path(&format!("stage/usr/{file}")));
        assert!(there.is_ok_and(|file| file.len() > 500), "{file}");
    }
    assert_eq!(pages(&scratch.path("stage/usr/share/man/man1")).len(), commands(&scratch).len());
}
