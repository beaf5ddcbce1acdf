//! `blockwork-kernel`: runs a script in the guest by hand, with disks of one's own.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blockwork_kernel::{Disk, Guest, GuestError, Output, create_disk, prepare};
use clap::{Args, Parser, Subcommand};

/// Boots Debian's kernel under QEMU and runs a bash script in it, as root, with disks.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make what the guest boots from, and say where it is; the first time needs the network.
    Prepare,
    /// Run a script.
    Run(Run),
}

#[derive(Debug, Args)]
struct Run {
    /// The script, for bash; tests/kernel/guest/lib.sh has functions for it.
    script: PathBuf,
    /// A disk: a raw file, which the script finds as /d/NAME; without NAME= that is the file's name without its extension.
    #[arg(long = "disk", value_name = "[NAME=]FILE")]
    disks: Vec<String>,
    /// A disk that an NBD server exports at a Unix socket.
    #[arg(long = "nbd", value_name = "NAME=SOCKET,EXPORT")]
    exports: Vec<String>,
    /// Make disks that are not there, sparse, of so many MiB.
    #[arg(long, value_name = "MIB")]
    create: Option<u64>,
    /// A file for the script, which finds it in /in.
    #[arg(long = "input", value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Where to put what the script leaves in /out.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// A variable for the script.
    #[arg(long = "variable", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Kill the script after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
    /// The script ends by calling power_cut.
    #[arg(long)]
    power_cut: bool,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Prepare => println!("{}", prepare()?.display()),
        Command::Run(run) => run_script(&run)?,
    }
    Ok(())
}

fn run_script(run: &Run) -> Result<()> {
    let script = fs::read(&run.script).with_context(|| format!("cannot read {}", run.script.display()))?;
    let guest = Guest::new();
    let mut scenario =
        guest.scenario().script(String::from_utf8(script).context("the script is not UTF-8")?).echo();
    scenario = scenario.timeout(Duration::from_secs(run.timeout));
    for disk in &run.disks {
        let (name, path) = named(disk)?;
        if let (false, Some(mebibytes)) = (path.exists(), run.create) {
            create_disk(&path, mebibytes << 20)?;
        }
        scenario = scenario.disk(&name, Disk::file(path));
    }
    for export in &run.exports {
        let parts = export.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(',')?)));
        let (name, (socket, export)) =
            parts.with_context(|| format!("--nbd {export}: expected NAME=SOCKET,EXPORT"))?;
        scenario = scenario.disk(name, Disk::nbd(socket, export));
    }
    for path in &run.inputs {
        let name = path.file_name().context("--input needs a file")?.to_string_lossy();
        scenario =
            scenario.input(&name, fs::read(path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    for variable in &run.variables {
        let (name, value) =
            variable.split_once('=').with_context(|| format!("--variable {variable}: no `=`"))?;
        scenario = scenario.variable(name, value);
    }
    let result = if run.power_cut { scenario.run_until_power_cut() } else { scenario.run() };
    match result {
        Ok(output) => keep(&output, run.out.as_ref()),
        // What it said has been shown.
        Err(GuestError::Failed { output }) => {
            keep(&output, run.out.as_ref())?;
            bail!("the script failed with exit status {}", output.exit)
        }
        Err(error) => Err(error.into()),
    }
}

/// `NAME=FILE`, or a file.
fn named(disk: &str) -> Result<(String, PathBuf)> {
    if let Some((name, path)) = disk.split_once('=') {
        return Ok((name.to_owned(), path.into()));
    }
    let path = PathBuf::from(disk);
    let name =
        path.file_stem().with_context(|| format!("--disk {disk}: no file"))?.to_string_lossy().into_owned();
    Ok((name, path))
}

fn keep(output: &Output, folder: Option<&PathBuf>) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    for (name, contents) in &output.files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
