//! `blockwork man`: a manual page for `blockwork` and for each verb, out of the definition that the parser and the help have. What the
//! help has in one text is told apart by its form: a block that begins with `Example` is one, the others describe.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Cli;

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages, such as /usr/local/share/man/man1. It is made where it is not there.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Names and what they stand for.
type Terms = &'static [(&'static str, &'static str)];

const EXIT_STATUS: Terms = &[
    ("0", "Success."),
    ("1", "Failure; an error on standard error says what to do."),
    ("2", "Wrong usage: nothing was done."),
];
const EXIT_STATUS_OF_SERVE: Terms =
    &[("130", "A second SIGTERM or SIGINT has ended the server at once, before the disks were flushed.")];

const ENVIRONMENT: Terms = &[
    ("BLOCKWORK_RUN_DIR", "The folder for control sockets, in place of those below."),
    ("RUST_LOG", "How much is told on standard error: error, warn (without it), info, debug or trace."),
];
const ENVIRONMENT_OF_SERVE: Terms = &[(
    "LISTEN_FDS, LISTEN_PID",
    "Sockets of a service manager, by which NBD is served where --nbd is not given.",
)];
const FILES: Terms = &[
    ("/run/blockwork/PID.sock", "The control socket of a server that root runs."),
    ("$XDG_RUNTIME_DIR/blockwork/PID.sock", "The same of another user."),
    ("/tmp/blockwork-UID/PID.sock", "The same where XDG_RUNTIME_DIR is not set."),
];
/// The pages that tell of control sockets; those below them lead here.
const OF_SERVERS: [&str; 8] = [
    "blockwork",
    "blockwork-serve",
    "blockwork-status",
    "blockwork-trace",
    "blockwork-message",
    "blockwork-md",
    "blockwork-vg",
    "blockwork-lv",
];

pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| format!("{}: it cannot be made", folder.display()))?;
    for (name, text) in pages().context("the pages cannot be made")? {
        let path = folder.join(format!("{name}.1"));
        let said = || format!("{}: the page cannot be written; the other pages may be older", path.display());
        fs::write(&path, text).with_context(said)?;
    }
    Ok(())
}

/// The pages by their names, `blockwork` first.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut found = Vec::new();
    collect(&command, None, &mut found)?;
    Ok(found)
}

fn collect(
    command: &Command,
    parent: Option<&Command>,
    found: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    found.push((name_of(command).to_owned(), page(command, parent)?));
    verbs(command).try_for_each(|verb| collect(verb, Some(command), found))
}

/// The verbs below a command that have pages.
fn verbs(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

/// `blockwork-md-create`.
fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command, parent: Option<&Command>) -> io::Result<Vec<u8>> {
    let name = name_of(command);
    let man = Man::new(command.clone());
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (examples, described): (Vec<&str>, Vec<&str>) =
        help.split("\n\n").filter(|block| !block.is_empty()).partition(|block| block.starts_with("Example"));
    let mut text = Vec::new();
    title(command).to_writer(&mut text)?;
    man.render_name_section(&mut text)?;
    section("SYNOPSIS", synopsis(command), &mut text)?;
    man.render_description_section(&mut text)?;
    paragraphs(&described).to_writer(&mut text)?;
    man.render_options_section(&mut text)?;
    if verbs(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    section("EXAMPLES", examples_of(&examples), &mut text)?;
    section("EXIT STATUS", terms(&[EXIT_STATUS, of_serve(name, EXIT_STATUS_OF_SERVE)]), &mut text)?;
    if OF_SERVERS.contains(&name) {
        section("ENVIRONMENT", terms(&[ENVIRONMENT, of_serve(name, ENVIRONMENT_OF_SERVE)]), &mut text)?;
        section("FILES", terms(&[FILES]), &mut text)?;
    }
    section("SEE ALSO", see_also(command, parent), &mut text)?;
    Ok(plain(&String::from_utf8_lossy(&text)).into_bytes())
}

/// Its name, section, date (of which a build knows nothing that would be the same the next time), source and manual.
fn title(command: &Command) -> Roff {
    let source = format!("Blockwork {}", command.get_version().unwrap_or_default());
    let mut roff = Roff::new();
    roff.control("TH", [name_of(command), "1", "\"\"", &source, "Blockwork"]);
    roff
}

/// As the help has it: what a verb cannot do without, with its values, and what may be repeated.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    for line in usage.trim_start_matches("Usage: ").lines() {
        roff.text([roman(line.trim())]);
    }
    roff
}

/// Of a page that was made in parts: the head of each part but the first left out, and an empty line told in one way, since programs that
/// check pages find fault with a line's end on either side of one.
fn plain(text: &str) -> String {
    let head = Roff::new().render();
    format!("{head}{}", text.replace(&head, "").replace("\n.br\n\n.br\n", "\n.sp\n"))
}

fn of_serve(name: &str, terms: Terms) -> Terms {
    if name == "blockwork-serve" { terms } else { &[] }
}

/// A section, unless there is nothing in it.
fn section(title: &str, content: Roff, text: &mut Vec<u8>) -> io::Result<()> {
    if content == Roff::new() {
        return Ok(());
    }
    let mut heading = Roff::new();
    heading.control("SH", [title]).extend([content]);
    heading.to_writer(text)
}

fn paragraphs(blocks: &[&str]) -> Roff {
    let mut roff = Roff::new();
    for line in blocks.iter().flat_map(|block| block.lines()) {
        roff.control("PP", []).text([roman(line.trim())]);
    }
    roff
}

/// Lines as they are typed.
fn examples_of(blocks: &[&str]) -> Roff {
    let lines: Vec<&str> = blocks.iter().flat_map(|block| block.lines().skip(1)).map(str::trim).collect();
    let mut roff = Roff::new();
    if !lines.is_empty() {
        roff.control("EX", []);
        for line in lines {
            roff.text([roman(line)]);
        }
        roff.control("EE", []);
    }
    roff
}

fn terms(tables: &[Terms]) -> Roff {
    let mut roff = Roff::new();
    for (term, meaning) in tables.iter().copied().flatten() {
        roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
    roff
}

/// Where one goes from here: up, and down.
fn see_also(command: &Command, parent: Option<&Command>) -> Roff {
    let above = parent.map(|parent| ["blockwork", name_of(parent)]);
    let mut names: Vec<&str> = above.into_iter().flatten().chain(verbs(command).map(name_of)).collect();
    names.dedup();
    let words = names.iter().enumerate().flat_map(|(at, name)| {
        let end = if at + 1 == names.len() { "(1)" } else { "(1), " };
        [bold(*name), roman(end)]
    });
    let mut roff = Roff::new();
    roff.text(words.collect::<Vec<_>>());
    roff
}
