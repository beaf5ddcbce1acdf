//! The verbs of `blockwork lv` and their options.

use std::sync::LazyLock;

use blockwork_format::dm_raid::ParityType;
use clap::builder::PossibleValue;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use crate::vg::{Place, Tags};

#[derive(Debug, Args)]
pub(crate) struct LvArgs {
    #[command(subcommand)]
    pub(crate) verb: LvVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LvVerb {
    /// Make a volume.
    // `-V` is `--virtual-size`, as for lvcreate.
    #[command(
        disable_version_flag = true,
        after_help = "Examples:\n  blockwork lv create vg0/root --size 10G --disk a.img b.img\n  \
        blockwork lv create vg0/all --extents 100%FREE --type striped --stripes 2 --disk a.img b.img\n  \
        blockwork lv create vg0/data --size 4G --type raid1 --disk a.img b.img\n  \
        blockwork lv create vg0/more --size 8G --type raid6 --stripes 4 --disk a.img b.img c.img d.img e.img f.img\n  \
        blockwork lv create vg0/pool --thin-pool --size 100G --disk a.img b.img\n  \
        blockwork lv create vg0/vm1 --thin pool --virtual-size 1T\n\n\
        A size without a suffix is in the unit in brackets. Without --disk, the server that serves volumes of the group does it, and serves the new one. It lies where `lvcreate` would put it. 128 KiB at its start and end are zeroed. The mirrors of a RAID are made the \
        same, and parities those of their data, by whoever serves it first, unless --nosync says that they need not be."
    )]
    Create(CreateArgs),
    /// Make a snapshot: a volume that stays as another one is now, and can be written by itself.
    #[command(
        after_help = "Examples:\n  blockwork lv snapshot vg0/root --size 1G --name before --disk a.img b.img\n  \
        blockwork lv snapshot vg0/root --extents 100%ORIGIN --disk a.img b.img\n  \
        blockwork lv snapshot vg0/vm1 --name vm1-before\n\n\
        Its size is what it can keep of the origin's old data and of its own new data: a chunk for each that is written. \
        When it is full, the snapshot is lost, and the origin goes on. A snapshot of a thin volume lies in the pool and has no \
        size of its own. Without --disk, the server that serves volumes of the group makes it while clients write."
    )]
    Snapshot(SnapshotArgs),
    /// Merge a snapshot back into its origin: that becomes what the snapshot is, and the snapshot goes.
    #[command(
        after_help = "Examples:\n  blockwork lv merge vg0/before --disk a.img b.img\n  blockwork lv merge vg0/before\n\n\
        Whoever opens the group during the merge finds in the origin what the snapshot was. ^C stops it, and the same command goes on \
        with it; so does `blockwork serve` of the origin, and Linux. Other snapshots of the origin stay as they are. A snapshot of a thin \
        volume takes the place of its origin at once, with its size: the origin keeps its name, tags and permissions.\n\n\
        Without --disk, the server that serves the origin does it, and the command does not wait for the end: `blockwork lv show` says \
        what is left. While a client has the origin or the snapshot open, the merge waits, since it would change what the origin is \
        under that client; nobody else can open the snapshot from then on."
    )]
    Merge(MergeArgs),
    /// Make a linear, striped or thin volume larger, or smaller; or a RAID volume, a snapshot or a thin pool larger.
    #[command(after_help = "Examples:\n  blockwork lv resize vg0/root --size +2G --disk a.img b.img\n  \
        blockwork lv resize vg0/root --extents +100%FREE --disk a.img b.img\n  \
        blockwork lv resize vg0/pool --pool-metadata-size +64M --disk a.img b.img\n\n\
        File systems are not told: grow them afterwards, shrink them before. What is new of a RAID volume is resynced by whoever\n\
        serves it: the server that has it, beside its clients, or who serves it next, this program or Linux.")]
    Resize(ResizeArgs),
    /// Give a volume another name.
    #[command(after_help = "Example:\n  blockwork lv rename vg0/root system --disk a.img b.img")]
    Rename(RenameArgs),
    /// Remove volumes, with what they hold.
    #[command(
        after_help = "Examples:\n  blockwork lv remove vg0/old vg0/older --disk a.img b.img\n  blockwork lv remove vg0/old\n\n\
        What a client of a server has open is not removed."
    )]
    Remove(RemoveArgs),
    /// Add tags to a volume, and take some away.
    #[command(after_help = "Example:\n  blockwork lv tag vg0/root --addtag db --disk a.img b.img")]
    Tag(TagArgs),
    /// Show volumes, as `lvs` does: how full they are, and how much of RAID volumes is in sync. Writes nothing.
    #[command(after_help = "Example:\n  blockwork lv show vg0 --disk a.img b.img")]
    Show(ShowArgs),
}

/// What a volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Linear,
    Striped,
    Raid1,
    Raid10,
    Parity(ParityType),
}

impl ValueEnum for Type {
    fn value_variants<'a>() -> &'a [Type] {
        static ALL: LazyLock<Vec<Type>> = LazyLock::new(|| {
            let parity = ParityType::ALL.into_iter().map(Type::Parity);
            [Type::Linear, Type::Striped, Type::Raid1, Type::Raid10].into_iter().chain(parity).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Type::Linear => "linear",
            Type::Striped => "striped",
            Type::Raid1 => "raid1",
            Type::Raid10 => "raid10",
            Type::Parity(kind) => kind.name(),
        }))
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("how_large").required(true).args(["size", "extents", "virtual_size"]))]
pub(crate) struct CreateArgs {
    /// The new volume; with --name only its group.
    #[arg(value_name = "VG/LV")]
    pub(crate) volume: String,
    /// What it is called.
    #[arg(short = 'n', long, value_name = "LV")]
    pub(crate) name: Option<String>,
    /// Its size, rounded up to whole extents.
    #[arg(short = 'L', long, value_name = "SIZE[m]")]
    pub(crate) size: Option<String>,
    /// Its size in extents, or in hundredths of what is free (100%FREE) or of the group (50%VG), copies included, parities not; less where
    /// there is no room for so much.
    #[arg(short = 'l', long, value_name = "N[%FREE|%VG]")]
    pub(crate) extents: Option<String>,
    /// What it is made of. Default: raid10 with --mirrors and --stripes, raid1 with --mirrors, striped with --stripes.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<Type>,
    /// Stripes, each on a disk of its own; of a RAID4, 5 or 6 those of data, beside which the parities are. Default: 2, of a RAID6 3.
    #[arg(short = 'i', long, value_name = "N")]
    pub(crate) stripes: Option<u64>,
    /// Size of a chunk of a stripe, a power of two.
    #[arg(short = 'I', long, value_name = "SIZE[k]", default_value = "64K")]
    pub(crate) stripesize: String,
    /// Copies of the data beside the first, each on disks of its own. Default: 1.
    #[arg(short = 'm', long, value_name = "N")]
    pub(crate) mirrors: Option<u64>,
    /// What a bit of the bitmap of a RAID stands for, a power of two.
    #[arg(short = 'R', long, value_name = "SIZE[m]", default_value = "2M")]
    pub(crate) regionsize: String,
    /// Tags for the volume.
    #[arg(long, value_name = "TAG")]
    pub(crate) addtag: Vec<String>,
    /// Take the mirrors for the same as they are: what was never written may differ from reading to reading. Of a RAID4 or 5, take the
    /// parity for that of the data: where it is not, what a disk had is not found without it. Not for a RAID6.
    #[arg(long)]
    pub(crate) nosync: bool,
    /// Leave what is on the disks where the volume begins and ends: to get back what was removed by mistake.
    #[arg(long)]
    pub(crate) no_wipe: bool,
    #[command(flatten)]
    pub(crate) thin: ThinArgs,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Of thin pools and their volumes, with LVM's names.
#[derive(Debug, Args)]
pub(crate) struct ThinArgs {
    /// Make a thin pool.
    #[arg(long, conflicts_with_all = ["kind", "stripes", "mirrors", "nosync", "no_wipe", "thin", "virtual_size"])]
    pub(crate) thin_pool: bool,
    /// Make a thin volume in this pool.
    #[arg(long, value_name = "POOL", alias = "thinpool", requires = "virtual_size",
          conflicts_with_all = ["kind", "stripes", "mirrors", "nosync", "no_wipe"])]
    pub(crate) thin: Option<String>,
    /// How large a thin volume looks, rounded up to whole extents: more than its pool has is fine.
    #[arg(short = 'V', long, value_name = "SIZE[m]", alias = "virtualsize", requires = "thin")]
    pub(crate) virtual_size: Option<String>,
    /// Of a thin pool: what is given to its volumes at once, a multiple of 64K up to 1G. Default: 64K, or as much more as keeps
    /// the map within 128M.
    #[arg(short, long, value_name = "SIZE[k]", requires = "thin_pool")]
    pub(crate) chunksize: Option<String>,
    /// Of a thin pool: room for its map. Default: 64 bytes for each chunk, 2M at least.
    #[arg(long, value_name = "SIZE[m]", alias = "poolmetadatasize", requires = "thin_pool")]
    pub(crate) pool_metadata_size: Option<String>,
    /// Of a thin pool: zero what is given to a volume, unless it is written whole.
    #[arg(short = 'Z', long, value_name = "y|n", default_value = "y", requires = "thin_pool")]
    pub(crate) zero: YesNo,
    /// Of a thin pool: what becomes of discards. They free chunks (`nopassdown`), and go on to the disks (`passdown`), or
    /// there are none (`ignore`).
    #[arg(long, value_name = "HOW", default_value = "passdown", requires = "thin_pool")]
    pub(crate) discards: Discards,
    /// Of a thin pool: let writes fail at once when it is full. Otherwise they wait for room, a minute at most.
    #[arg(long, value_name = "y|n", default_value = "n", alias = "errorwhenfull", requires = "thin_pool")]
    pub(crate) error_when_full: YesNo,
}

/// `y` or `n`, as LVM's tools take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum YesNo {
    Y,
    N,
}

/// What becomes of discards in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Discards {
    Passdown,
    Nopassdown,
    Ignore,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("how_large").args(["size", "extents"]))]
pub(crate) struct SnapshotArgs {
    /// Of what.
    #[arg(value_name = "VG/LV")]
    pub(crate) volume: String,
    /// How much it can keep, rounded up to whole extents. A thin volume's snapshot has none.
    #[arg(short = 'L', long, value_name = "SIZE[m]")]
    pub(crate) size: Option<String>,
    /// The same in extents, or in hundredths of what is free (50%FREE), of the group (5%VG), or of the origin's data
    /// (100%ORIGIN never fills up).
    #[arg(short = 'l', long, value_name = "N[%ORIGIN|%FREE|%VG]")]
    pub(crate) extents: Option<String>,
    /// Its name. Default: lvol0, or the next number.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// What is kept at once, a power of two from 4K to 512K.
    #[arg(short, long, value_name = "SIZE[k]", default_value = "4K", requires = "how_large")]
    pub(crate) chunksize: String,
    /// Tags for the snapshot.
    #[arg(long, value_name = "TAG")]
    pub(crate) addtag: Vec<String>,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// The snapshot.
    #[arg(value_name = "VG/LV")]
    pub(crate) volume: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("how_large").required(true).args(["size", "extents", "pool_metadata_size"]))]
pub(crate) struct ResizeArgs {
    /// The volume.
    #[arg(value_name = "VG/LV")]
    pub(crate) volume: String,
    /// Its new size; with + or - in front, by how much it is to grow or shrink.
    #[arg(short = 'L', long, value_name = "[+|-]SIZE[m]", allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// The same in extents; or +N%FREE, hundredths of what is free.
    #[arg(short = 'l', long, value_name = "[+|-]N", allow_hyphen_values = true)]
    pub(crate) extents: Option<String>,
    /// Of a thin pool: the size of its map, or by how much it is to grow.
    #[arg(long, value_name = "[+]SIZE[m]", alias = "poolmetadatasize")]
    pub(crate) pool_metadata_size: Option<String>,
    /// It may become smaller: what lies behind its new end is lost.
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// The volume.
    #[arg(value_name = "VG/LV")]
    pub(crate) volume: String,
    /// Its new name; the group may stand before it. Or three names, as for lvrename: VG LV NEW.
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
    #[arg(hide = true)]
    pub(crate) new_of_three: Option<String>,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// The volumes, all of one group.
    #[arg(value_name = "VG/LV", required = true)]
    pub(crate) volumes: Vec<String>,
    /// As for lvremove; nothing is asked here without it, either, and what a client has open stays with it, too.
    #[arg(short = 'f', long = "force")]
    _force: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// The volume.
    #[arg(value_name = "VG/LV")]
    pub(crate) volume: String,
    #[command(flatten)]
    pub(crate) tags: Tags,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Only the volumes of this group, or only this one.
    #[arg(value_name = "VG[/LV]")]
    pub(crate) which: Option<String>,
    /// Show the parts of volumes as well.
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}
