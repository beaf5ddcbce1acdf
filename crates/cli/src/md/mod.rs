//! `blockwork md`: arrays are made, looked at and looked after. One verb a file.

mod args;
mod create;
mod examine;
mod progress;
mod status;
mod target;
mod verb_args;
mod verbs;
mod zero;

use anyhow::Result;

pub(crate) use args::MdArgs;
use args::MdVerb;
pub(crate) use progress::Progress;

pub(crate) fn run(args: &MdArgs) -> Result<()> {
    match &args.verb {
        MdVerb::Create(args) => create::run(args),
        MdVerb::Examine(args) => examine::run(args),
        MdVerb::Status(args) => status::run(args),
        MdVerb::Add(args) => verbs::add(args),
        MdVerb::Fail(args) => verbs::fail(args),
        MdVerb::Remove(args) => verbs::remove(args),
        MdVerb::Replace(args) => verbs::replace(args),
        MdVerb::Check(args) => verbs::check(args),
        MdVerb::Repair(args) => verbs::repair(args),
        MdVerb::StopSync(which) => verbs::stop_sync(which),
        MdVerb::StartSync(which) => verbs::start_sync(which),
        MdVerb::SyncSpeed(args) => verbs::sync_speed(args),
        MdVerb::Grow(args) => verbs::grow(args),
        MdVerb::Wait(which) => verbs::wait(which),
        MdVerb::ZeroSuperblock(args) => zero::run(args),
    }
}
