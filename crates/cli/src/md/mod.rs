//! `blockwork md`: arrays are made, looked at and looked after. One verb a file.

mod args;
mod examine;

use anyhow::Result;

pub(crate) use args::MdArgs;
use args::MdVerb;

pub(crate) fn run(args: &MdArgs) -> Result<()> {
    match &args.verb {
        MdVerb::Examine(args) => examine::run(args),
    }
}
