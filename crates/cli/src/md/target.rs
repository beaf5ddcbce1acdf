//! Who does what is asked of an array: the running server that has it, or this process, which opens its disks for that.
//!
//! Both are asked by the same words ([`Verb`]), and both do it by the same code ([`ServedArrays`]).

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use blockwork_daemon::{ArrayAnswer, ArrayRequest, Arrays, ClientError, Disks, Verb, ask_array, find_array};
use blockwork_format::escape;
use blockwork_leaf::LeafError;
use blockwork_volume::{Assembly, Plan, VolumeError};

use super::verb_args::Which;
use crate::serve::{Offers, ServedArrays, Workers, WorkersConfig};
use crate::usage::bail_usage;

/// Workers of an idle array: what is done with it has one client.
const WORKERS: usize = 1;

/// An array, and who does what is asked of it.
pub(crate) struct Target {
    /// Its name as it was given.
    pub(crate) array: String,
    who: Who,
}

enum Who {
    /// The server at this socket.
    Server(PathBuf),
    /// This process.
    Ourselves(Box<Ourselves>),
}

struct Ourselves {
    workers: Workers,
    arrays: ServedArrays,
}

impl Target {
    /// Finds the array.
    pub(crate) fn find(which: &Which) -> Result<Target> {
        let array = which.array.clone();
        let who = if which.place.disk.is_empty() {
            Who::Server(find_array(&array).map_err(|error| absent(error, which.place.may_open))?.socket)
        } else {
            Who::Ourselves(Box::new(Ourselves::open(which)?))
        };
        Ok(Target { array, who })
    }

    /// Whether this process does it.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.who, Who::Ourselves(_))
    }

    /// Takes up what is due, such as a resync. A server has done so when it began.
    pub(crate) fn take_up(&self) {
        if let Who::Ourselves(own) = &self.who {
            own.workers.open_layers();
        }
    }

    /// Has something done, and waits until it is (not until the array is in sync).
    pub(crate) fn ask(&self, verb: Verb) -> Result<ArrayAnswer> {
        let request = ArrayRequest { array: self.array.clone(), verb };
        match &self.who {
            Who::Server(socket) => Ok(ask_array(socket, &request)?),
            Who::Ourselves(own) => Ok(own.arrays.act(&request)?),
        }
    }

    /// Leaves the array: one of this process is put to rest, with a checkpoint of what was being synced.
    pub(crate) fn leave(self) -> Result<()> {
        let Who::Ourselves(mut own) = self.who else { return Ok(()) };
        let mut failure = None;
        own.workers.stop(&mut |error| match failure {
            Some(_) => log::error!("{}", crate::said(&error)),
            None => failure = Some(error),
        });
        failure.map_or(Ok(()), Err)
    }
}

impl Ourselves {
    fn open(which: &Which) -> Result<Ourselves> {
        let plan = Plan { disks: which.place.disk.clone(), ..Plan::default() };
        let mut assembly = Assembly::open(plan).map_err(|error| in_use(error, &which.array))?;
        if !which.array.starts_with("md/") && !which.array.starts_with("md:") {
            bail_usage!("{}: no name of an array: expected md/NAME or md/UUID", escape(&which.array));
        }
        let chosen = assembly.choose(std::slice::from_ref(&which.array))?;
        assembly.warnings().iter().for_each(|warning| log::warn!("{warning}"));
        let volumes: Vec<_> = chosen.into_iter().map(|chosen| chosen.volume).collect();
        let config = WorkersConfig { count: WORKERS, ..WorkersConfig::default() };
        // A worker that ends of its own accord takes the answers that are waited for with it: that is heard.
        let workers = Workers::start(&config, assembly, volumes, std::sync::Arc::new(|_| {}))?;
        let arrays = ServedArrays::new(&workers, Disks::default(), Offers::default());
        // Nobody else wants these disks now.
        let most = Some(which.place.sync_speed_max.unwrap_or(u64::MAX));
        let verb = Verb::SyncSpeed { min_kib: most, max_kib: most };
        arrays.act(&ArrayRequest { array: which.array.clone(), verb })?;
        Ok(Ourselves { workers, arrays })
    }
}

/// Not found: most verbs could open its disks as well.
fn absent(error: ClientError, may_open: bool) -> anyhow::Error {
    match error {
        ClientError::NoArray { .. } if !may_open => {
            anyhow!("{error}; there is nothing to be done where no server runs: serve the array first")
        }
        ClientError::NoArray { .. } => anyhow!(
            "{error}; serve it, or have this command open its disks: add --disk DISK... (all of the array's)"
        ),
        error => error.into(),
    }
}

/// A disk of an array that is served is best reached through its server.
fn in_use(error: VolumeError, array: &str) -> anyhow::Error {
    let is_served = matches!(&error, VolumeError::Leaf(LeafError::InUse { .. })) && find_array(array).is_ok();
    if is_served {
        let array = escape(array);
        return anyhow!(
            "{error}; a running server has {array}: without --disk, this command asks that server"
        );
    }
    error.into()
}
