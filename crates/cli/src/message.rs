//! `blockwork message`: tells a thin pool of a table what `dmsetup message` tells the kernel's: one that is served, or, by its table, one
//! that nobody serves.

use anyhow::{Result, anyhow};
use blockwork_daemon::{ClientError, PoolRequest, find_pool, tell_pool};
use blockwork_volume::{Assembly, Plan, PoolChange};

use crate::args::MessageArgs;
use crate::at_once;
use crate::usage::bail_usage;

/// What a pool can be told.
const MESSAGES: &str = "create_thin ID, create_snap ID ORIGIN, delete ID, set_transaction_id CURRENT NEW, \
                        reserve_metadata_snap or release_metadata_snap";

pub(crate) fn run(args: &MessageArgs) -> Result<()> {
    if args.sector != 0 {
        bail_usage!(
            "{}: sector {}: a thin pool is one target, which begins at sector 0",
            args.device,
            args.sector
        );
    }
    let change = change(&args.message)?;
    let Some(table) = &args.table else { return tell_served(args) };
    let mut assembly = Assembly::open(Plan { disks: args.disk.clone(), ..Plan::default() })?;
    let commit = assembly.change_table_pool(table, &args.device, change)?;
    for warning in assembly.warnings() {
        log::warn!("{warning}");
    }
    at_once::run(&assembly, |cx| async move { commit.run(&cx).await })??;
    Ok(())
}

fn tell_served(args: &MessageArgs) -> Result<()> {
    let socket = find_pool(&args.device).map_err(|error| match error {
        ClientError::Nowhere { .. } => anyhow!("{error}; for one that nobody serves, add --table FILE"),
        error => error.into(),
    })?;
    tell_pool(&socket, &PoolRequest { pool: args.device.clone(), message: args.message.join(" ") })?;
    Ok(())
}

/// The words of a message, which may come as one argument, as `dmsetup` takes them.
pub(crate) fn change(message: &[String]) -> Result<PoolChange> {
    let words: Vec<&str> = message.iter().flat_map(|part| part.split_whitespace()).collect();
    let number = |word: &str| -> Result<u64> {
        match word.parse() {
            Ok(number) if word.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
            _ => bail_usage!("{word:?} in {:?} is no number", words.join(" ")),
        }
    };
    Ok(match words[..] {
        ["create_thin", device] => PoolChange::Create { device: number(device)? },
        ["create_snap", device, origin] => {
            PoolChange::Snapshot { device: number(device)?, origin: number(origin)? }
        }
        ["delete", device] => PoolChange::Delete { device: number(device)? },
        ["set_transaction_id", current, new] => {
            PoolChange::TransactionId { current: number(current)?, new: number(new)? }
        }
        ["reserve_metadata_snap"] => PoolChange::ReserveMetadataSnap,
        ["release_metadata_snap"] => PoolChange::ReleaseMetadataSnap,
        _ => bail_usage!("{:?} is no message of a thin pool; expected {MESSAGES}", words.join(" ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_kernel() {
        let of = |text: &str| change(&[text.to_owned()]);
        assert_eq!(of("create_thin 7").unwrap(), PoolChange::Create { device: 7 });
        let words = ["create_snap", "2", "1"].map(str::to_owned);
        assert_eq!(change(&words).unwrap(), PoolChange::Snapshot { device: 2, origin: 1 });
        assert_eq!(of("set_transaction_id 0 1").unwrap(), PoolChange::TransactionId { current: 0, new: 1 });
        for wrong in ["", "create_thin", "create_thin x", "create_thin +1", "create_thin 1 2", "grow"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
