//! `blockwork md zero-superblock`: disks are members of no array any more.

use anyhow::{Result, anyhow, bail};
use blockwork_daemon::{arrays_at, servers};
use blockwork_format::escape;
use blockwork_format::md::Superblock;
use blockwork_volume::md::{Zeroed, Zeroing};

use super::args::ZeroArgs;
use crate::{at_once, out};

pub(crate) fn run(args: &ZeroArgs) -> Result<()> {
    let zeroing = Zeroing::prepare(&args.disks, args.force)?;
    if !args.force {
        zeroing.devices().iter().try_for_each(is_nobodys)?;
    }
    let writing = zeroing.writing();
    at_once::run(zeroing.assembly(), |cx| async move { writing.carry_out(&cx).await })?
        .map_err(|error| anyhow!("{error}; what was to be taken away may be there still"))?;
    let said: String = zeroing.devices().iter().flat_map(said).collect();
    out::print_done(&said)?;
    for none in zeroing.devices().iter().filter(|it| it.superblocks.is_empty() && it.damaged == 0) {
        // Its words, and no failure for it, either: what was asked for is so.
        log::warn!("Unrecognised md component device - {}: it has no superblock", escape(&none.name));
    }
    Ok(())
}

/// Nobody serves the array that a device belongs to, and may want it back as it is. Who has it open has locked it; but an array that is served
/// without a member counts on what that has, if nothing was written since.
fn is_nobodys(device: &Zeroed) -> Result<()> {
    let Some(own) = device.superblocks.last() else { return Ok(()) };
    let mut servers = servers()?;
    for (server, arrays) in servers.ask(|server| arrays_at(&server.socket)) {
        let uuid = own.uuid().to_string();
        if let Some(array) = arrays.iter().find(|array| array.uuid == uuid && own.events() >= array.events) {
            bail!(
                "{}: it is an up-to-date member of {}, which process {} serves: `blockwork md add` gives it back, --force takes it away all the \
                 same",
                escape(&device.name),
                escape(&array.name),
                server.pid
            );
        }
    }
    servers.complete().map_err(|error| {
        anyhow!(
            "{}: {error}, and it may be a member of an array there; --force takes that away all the same",
            escape(&device.name)
        )
    })
}

/// What a device has lost, a line for each.
fn said(device: &Zeroed) -> Vec<String> {
    let name = escape(&device.name);
    let whole = device.superblocks.iter().map(|it| {
        let array = match it {
            Superblock::V0(_) => it.level().to_string(),
            Superblock::V1(own) => format!("{} \"{}\"", it.level(), own.set_name),
        };
        format!("{name}: no superblock {} of the array {array} ({}) any more\n", it.version(), it.uuid())
    });
    let damaged = (0..device.damaged).map(|_| format!("{name}: no damaged superblock any more\n"));
    whole.chain(damaged).collect()
}
