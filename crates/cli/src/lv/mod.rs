//! `blockwork lv`: logical volumes of LVM2 are made, changed and shown, on disks that nobody uses, or by the server that serves
//! volumes of the group.

mod amount;
mod args;
mod merge;
mod show;
mod snapshot;
mod thin;

use anyhow::Result;
use blockwork_volume::lvm::edit::{Change, NewVolume, Shape, TagChange, stripes_of_parity};

use crate::sizes::{KIB, MIB, sectors};
use crate::usage::{bail_usage, usage};
use crate::vg::target::change;
pub(crate) use args::LvArgs;
use args::{CreateArgs, LvVerb, RemoveArgs, RenameArgs, ResizeArgs, TagArgs, Type};

pub(crate) fn run(args: &LvArgs) -> Result<()> {
    match &args.verb {
        LvVerb::Create(args) => create(args),
        LvVerb::Snapshot(args) => snapshot::run(args),
        LvVerb::Merge(args) => merge::run(args),
        LvVerb::Resize(args) => resize(args),
        LvVerb::Rename(args) => rename(args),
        LvVerb::Remove(args) => remove(args),
        LvVerb::Tag(args) => tag(args),
        LvVerb::Show(args) => show::run(args),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let (group, name) = new_name(args)?;
    if args.thin.thin_pool {
        return change(&args.place, group, Change::CreateThinPool(thin::new_pool(args, name)?));
    }
    if let Some(pool) = &args.thin.thin {
        return change(&args.place, group, Change::CreateThin(thin::new_volume(args, group, name, pool)?));
    }
    let size = amount::new_size(args.size.as_deref(), args.extents.as_deref())?;
    let shape = shape(args)?;
    if args.nosync && !shape.is_raid() {
        bail_usage!("--nosync: only the mirrors and parities of a RAID are synced");
    }
    let new = NewVolume {
        name: name.to_owned(),
        size,
        shape,
        tags: args.addtag.clone(),
        wipe: !args.no_wipe,
        no_sync: args.nosync,
    };
    change(&args.place, group, Change::Create(new))
}

/// What a new volume is to be made of.
fn shape(args: &CreateArgs) -> Result<Shape> {
    let kind = args.kind.unwrap_or(match (args.mirrors, args.stripes) {
        (Some(1..), Some(2..)) => Type::Raid10,
        (Some(1..), _) => Type::Raid1,
        (_, Some(2..)) => Type::Striped,
        _ => Type::Linear,
    });
    let stripes = args.stripes.unwrap_or(match kind {
        Type::Parity(kind) => stripes_of_parity(kind),
        Type::Linear | Type::Striped | Type::Raid1 | Type::Raid10 => 2,
    });
    let mirrors = args.mirrors.unwrap_or(1);
    let stripe_size = sectors("--stripesize", &args.stripesize, KIB)?;
    let region_size = sectors("--regionsize", &args.regionsize, MIB)?;
    let unfit = |option: &str| Err(usage!("{option}: a volume of that type has none"));
    match kind {
        Type::Linear | Type::Raid1 if args.stripes.is_some_and(|stripes| stripes != 1) => unfit("--stripes"),
        Type::Linear | Type::Striped | Type::Parity(_)
            if args.mirrors.is_some_and(|mirrors| mirrors != 0) =>
        {
            unfit("--mirrors")
        }
        Type::Linear => Ok(Shape::Linear),
        Type::Striped => Ok(Shape::Striped { stripes, stripe_size }),
        Type::Raid1 => Ok(Shape::Raid1 { mirrors, region_size }),
        Type::Raid10 => Ok(Shape::Raid10 { stripes, mirrors, stripe_size, region_size }),
        Type::Parity(kind) => Ok(Shape::Parity { kind, stripes, stripe_size, region_size }),
    }
}

fn resize(args: &ResizeArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    let map_size = args.pool_metadata_size.as_deref();
    let to = amount::resize(map_size.or(args.size.as_deref()), args.extents.as_deref())?;
    let volume = name.to_owned();
    let resize = match map_size {
        Some(_) => Change::ResizePoolMetadata { volume, to },
        None => Change::Resize { volume, to, may_shrink: args.force },
    };
    change(&args.place, group, resize)
}

fn rename(args: &RenameArgs) -> Result<()> {
    let (group, old, new) = match &args.new_of_three {
        None => split(&args.volume).map(|(group, old)| (group, old, args.new.as_str()))?,
        Some(new) => (plain(&args.volume), in_group(&args.volume, &args.new)?, new.as_str()),
    };
    let new = in_group(group, new)?;
    change(&args.place, group, Change::Rename { volume: old.to_owned(), new: new.to_owned() })
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let volumes = args.volumes.iter().map(|volume| split(volume)).collect::<Result<Vec<_>>>()?;
    let (group, _) = volumes[0];
    if let Some((other, _)) = volumes.iter().find(|(other, _)| *other != group) {
        bail_usage!("the volumes are of two groups ({group} and {other}): remove them one group at a time");
    }
    let volumes = volumes.iter().map(|(_, name)| (*name).to_owned()).collect();
    change(&args.place, group, Change::Remove { volumes })
}

fn tag(args: &TagArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    let tags = TagChange::from(&args.tags);
    change(&args.place, group, Change::TagVolume { volume: name.to_owned(), tags })
}

/// The name of a volume of a group, before which the group may stand.
fn in_group<'a>(group: &str, name: &'a str) -> Result<&'a str> {
    match plain(name).split_once('/') {
        None => Ok(name),
        Some((same, own)) if same == plain(group) => Ok(own),
        Some((other, _)) => {
            bail_usage!("{name}: expected a name in {group}, not in {other}: a volume stays in its group")
        }
    }
}

/// The group of a new volume and its name, however they are told.
fn new_name(args: &CreateArgs) -> Result<(&str, &str)> {
    let Some(name) = &args.name else { return split(&args.volume) };
    let group = plain(&args.volume);
    if group.contains('/') {
        bail_usage!("{:?}: beside --name, expected the group alone; or leave --name out", args.volume);
    }
    Ok((group, name))
}

/// `VG/LV` as two names.
fn split(volume: &str) -> Result<(&str, &str)> {
    match plain(volume).split_once('/') {
        Some((group, name)) if !group.is_empty() && !name.is_empty() => Ok((group, name)),
        _ => bail_usage!("{volume:?}: expected VG/LV, the group's name and the volume's"),
    }
}

/// A name without the folder in which the kernel has it.
fn plain(name: &str) -> &str {
    name.strip_prefix("/dev/").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_say_its_group() {
        for (group, name) in
            [("vg", "snap"), ("vg", "vg/snap"), ("/dev/vg", "vg/snap"), ("vg", "/dev/vg/snap")]
        {
            assert_eq!(in_group(group, name).unwrap(), "snap");
        }
        assert!(in_group("vg", "other/snap").is_err());
    }
}
