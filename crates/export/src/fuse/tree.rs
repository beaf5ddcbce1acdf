//! What a mount shows: one file, or folders with a file for each volume. Volumes come, go, grow, and get other names.
//!
//! Invariants:
//! 1. Node numbers are never used again: a file's follows from its volume's key in [`Files`], which no other one gets, a folder's from its
//!    path. So a client keeps the file that it has open, whatever it is called by now, and the kernel's FORGETs need no counting.
//! 2. Every volume has exactly one file, and every file a volume.
//! 3. A volume whose name is also the beginning of others' (`disk/a.img` beside `disk/a.img/1`) becomes a folder, since
//!    a name cannot be both; the volume itself is the file [`WHOLE`] in it (`disk/a.img/whole`), with
//!    underscores put before it if a volume has that name already.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockwork_engine::{Sectors, Volume, VolumeId};

use super::abi::{Attr, NAME_MAX, ROOT, S_IFDIR, S_IFREG};
use crate::offered::{Named, Offered, OfferedError};

/// The file of a volume whose own name is a folder.
pub const WHOLE: &str = "whole";

/// The first number behind the root's, of files and of folders: these take turns.
const FILES: u64 = ROOT + 1;
const FOLDERS: u64 = ROOT + 2;

/// A volume that cannot be a file: a part of its name is empty, `.`, `..`, too long, or holds a NUL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "volume {name:?} cannot be a file: {part:?} is not a file name (expected 1 to {NAME_MAX} bytes, not `.` or `..`, without NUL); serve it by NBD, or alone over one file"
)]
pub struct NameError {
    /// The volume.
    name: String,
    /// The part.
    part: String,
}

/// A volume as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its name.
    pub name: String,
    /// Its number.
    pub volume: VolumeId,
    /// Its size.
    pub sectors: Sectors,
    /// Whether it refuses writes.
    pub read_only: bool,
}

impl Served {
    /// The file of a volume, under its own name.
    pub fn new(id: VolumeId, volume: &Volume, read_only: bool) -> Served {
        Served {
            name: volume.name.clone(),
            volume: id,
            sectors: volume.sectors(),
            read_only: read_only || volume.read_only,
        }
    }

    /// Whether it can have a place in folders.
    ///
    /// # Errors
    /// A part of its name is no file name.
    pub fn check_path(&self) -> Result<(), NameError> {
        let bad =
            |part: &&str| matches!(*part, "" | "." | "..") || part.len() > NAME_MAX || part.contains('\0');
        let found = self.name.split('/').find(bad);
        found.map_or(Ok(()), |part| Err(NameError { name: self.name.clone(), part: part.to_owned() }))
    }
}

impl Named for Served {
    const OPENER: &'static str = "program";

    fn name(&self) -> &str {
        &self.name
    }

    fn check_name(&self) -> Result<(), OfferedError> {
        // What is alone over one file may be called anything.
        Ok(())
    }
}

/// The volumes that mounts of a server show.
pub type Files = Offered<Served>;

#[derive(Debug)]
enum Node {
    File { key: u64, served: Served },
    Folder { parent: u64, entries: BTreeMap<String, u64> },
}

/// Files and folders by node number.
#[derive(Debug)]
pub struct Tree {
    nodes: BTreeMap<u64, Node>,
    /// Of all folders that there have been.
    folders: BTreeMap<String, u64>,
    /// The root is a folder.
    is_folder: bool,
    /// Of [`Files`], as they were last looked at.
    version: Option<u64>,
    owner: (u32, u32),
    file_mode: u32,
    /// When it was made, since 1970.
    made: Duration,
}

/// One entry of a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its node.
    pub node: u64,
    /// `S_IFDIR` or `S_IFREG`.
    pub kind: u32,
    /// What READDIR goes on behind: others come and go without altering it.
    pub offset: u64,
}

impl Tree {
    /// Of nothing yet: [`Tree::follow`] comes next. The root is a folder with a file for each volume, in folders as their names' slashes say,
    /// or else the first one's file.
    pub fn new(is_folder: bool, owner: (u32, u32), file_mode: u32) -> Tree {
        let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (nodes, folders) = (BTreeMap::new(), BTreeMap::new());
        Tree { nodes, folders, is_folder, version: None, owner, file_mode, made }
    }

    /// Shows the volumes as they are now, if they have changed.
    #[inline]
    pub fn follow(&mut self, files: &Files) {
        if self.version != Some(files.version()) {
            self.show(files);
        }
    }

    #[cold]
    fn show(&mut self, files: &Files) {
        self.version = Some(files.version());
        let volumes: Vec<(u64, Served)> =
            files.look(|all| all.map(|seen| (seen.key, seen.one.clone())).collect());
        self.nodes.clear();
        if self.is_folder {
            self.show_in_folders(volumes);
        } else if let Some((key, served)) = volumes.into_iter().next() {
            self.nodes.insert(ROOT, Node::File { key, served });
        }
    }

    fn show_in_folders(&mut self, mut volumes: Vec<(u64, Served)>) {
        volumes.retain(|(_, served)| served.check_path().is_ok());
        self.nodes.insert(ROOT, Node::Folder { parent: ROOT, entries: BTreeMap::new() });
        // Folders first, so that it is known which names are taken by them.
        for (_, served) in &volumes {
            if let Some((folder, _)) = served.name.rsplit_once('/') {
                self.make_folders(folder);
            }
        }
        // Whole ones last: their file's name must give way to a volume that has it in its own right.
        let (whole, plain): (Vec<_>, Vec<_>) =
            volumes.into_iter().partition(|(_, served)| self.walk(&served.name).is_some());
        for (key, served) in plain {
            let (folder, file) = served.name.rsplit_once('/').unwrap_or(("", &served.name));
            let (at, file) = (self.walk(folder).expect("made above"), file.to_owned());
            self.add_file(at, file, key, served);
        }
        for (key, served) in whole {
            let at = self.walk(&served.name).expect("partitioned by this");
            let mut file = WHOLE.to_owned();
            while self.child(at, &file).is_some() {
                file.insert(0, '_');
            }
            self.add_file(at, file, key, served);
        }
    }

    fn make_folders(&mut self, path: &str) {
        let mut at = ROOT;
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for end in ends {
            let (path, name) = (&path[..end], path[..end].rsplit('/').next().expect("a last part"));
            at = match self.child(at, name) {
                Some(node) => node,
                None => {
                    let next = FOLDERS + 2 * self.folders.len() as u64;
                    let node = *self.folders.entry(path.to_owned()).or_insert(next);
                    self.nodes.insert(node, Node::Folder { parent: at, entries: BTreeMap::new() });
                    self.entries_mut(at).insert(name.to_owned(), node);
                    node
                }
            };
        }
    }

    fn entries_mut(&mut self, node: u64) -> &mut BTreeMap<String, u64> {
        match self.nodes.get_mut(&node) {
            Some(Node::Folder { entries, .. }) => entries,
            _ => unreachable!("folders are made before files"),
        }
    }

    fn add_file(&mut self, parent: u64, name: String, key: u64, served: Served) {
        let node = FILES + 2 * key;
        self.nodes.insert(node, Node::File { key, served });
        self.entries_mut(parent).insert(name, node);
    }

    fn walk(&self, path: &str) -> Option<u64> {
        path.split('/').filter(|part| !part.is_empty()).try_fold(ROOT, |at, part| self.child(at, part))
    }

    /// The node called `name` in the folder `parent`.
    pub fn child(&self, parent: u64, name: &str) -> Option<u64> {
        match self.nodes.get(&parent)? {
            Node::Folder { entries, .. } => entries.get(name).copied(),
            Node::File { .. } => None,
        }
    }

    /// The volume whose file `node` is.
    #[inline]
    pub fn served(&self, node: u64) -> Option<&Served> {
        match self.nodes.get(&node)? {
            Node::File { served, .. } => Some(served),
            Node::Folder { .. } => None,
        }
    }

    /// Its key in [`Files`].
    pub fn key(&self, node: u64) -> Option<u64> {
        match self.nodes.get(&node)? {
            Node::File { key, .. } => Some(*key),
            Node::Folder { .. } => None,
        }
    }

    /// All volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Served> {
        self.nodes.keys().filter_map(|node| self.served(*node))
    }

    /// Where the files are that can be written, if the root is at `root`.
    pub fn writable(&self, root: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut left = vec![(ROOT, root.to_owned())];
        while let Some((node, path)) = left.pop() {
            match self.nodes.get(&node) {
                Some(Node::File { served, .. }) if !served.read_only => files.push(path),
                Some(Node::Folder { entries, .. }) => {
                    left.extend(entries.iter().map(|(name, node)| (*node, path.join(name))));
                }
                _ => {}
            }
        }
        files
    }

    /// What stat(2) shows. Blocks count as allocated: what a volume really takes is its layers' business.
    pub fn attr(&self, node: u64) -> Option<Attr> {
        let (mode, nlink, size) = match self.nodes.get(&node)? {
            Node::File { served, .. } => {
                let mode = if served.read_only { self.file_mode & !0o222 } else { self.file_mode };
                (S_IFREG | mode, 1, served.sectors.bytes())
            }
            Node::Folder { .. } => (S_IFDIR | 0o555, 2, 0),
        };
        let (uid, gid) = self.owner;
        let (accessed, altered) = (self.made, self.made);
        Some(Attr { ino: node, size, mode, nlink, uid, gid, accessed, altered, blksize: super::BLOCK })
    }

    /// The root's type and permissions, for mount(2).
    pub fn root_mode(&self) -> u32 {
        self.attr(ROOT).expect("there is a root").mode
    }

    /// The entries of a folder behind an offset; none if it is a file.
    pub fn list(&self, node: u64, behind: u64) -> Option<impl Iterator<Item = Entry<'_>>> {
        let Node::Folder { parent, entries } = self.nodes.get(&node)? else { return None };
        let dots = [(".", node, 1), ("..", *parent, 2)];
        let dots = dots.map(|(name, node, offset)| Entry { name, node, kind: S_IFDIR, offset });
        // By their numbers, which stay.
        let mut children: Vec<_> = entries.iter().collect();
        children.sort_by_key(|(_, node)| **node);
        let children = children.into_iter().map(|(name, &node)| {
            let kind = if self.served(node).is_some() { S_IFREG } else { S_IFDIR };
            Entry { name, node, kind, offset: node + 2 }
        });
        Some(dots.into_iter().chain(children).filter(move |entry| entry.offset > behind))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn served(name: &str, number: u16) -> Served {
        Served { name: name.into(), volume: VolumeId(number), sectors: Sectors(8), read_only: false }
    }

    fn shown(volumes: impl IntoIterator<Item = Served>, is_folder: bool) -> Tree {
        let mut tree = Tree::new(is_folder, (0, 0), 0o600);
        tree.follow(&Files::of(volumes).unwrap());
        tree
    }

    fn tree(names: &[&str]) -> Tree {
        shown(names.iter().zip(0..).map(|(name, number)| served(name, number)), true)
    }

    fn paths(tree: &Tree) -> Vec<String> {
        fn visit(tree: &Tree, node: u64, path: &str, out: &mut Vec<String>) {
            let mut entries: Vec<_> = tree.list(node, 2).unwrap().collect();
            entries.sort_by_key(|entry| entry.name);
            for entry in entries {
                let path = format!("{path}/{}", entry.name);
                match tree.served(entry.node) {
                    Some(served) => out.push(format!("{path} = {}", served.name)),
                    None => visit(tree, entry.node, &path, out),
                }
            }
        }
        let mut out = Vec::new();
        visit(tree, ROOT, "", &mut out);
        out
    }

    #[test]
    fn files_that_can_be_written_are_found_wherever_they_are() {
        let mut volumes: Vec<_> =
            ["disk/a", "disk/a/1", "b", "vg/c"].iter().zip(0..).map(|(name, n)| served(name, n)).collect();
        volumes[2].read_only = true;
        let root = Path::new("/mnt");
        let alone = |n: usize| shown([volumes[n].clone()], false).writable(root);
        assert_eq!((alone(0), alone(2)), (vec![root.to_owned()], vec![]));
        let mut files = shown(volumes.clone(), true).writable(root);
        files.sort();
        assert_eq!(files, ["/mnt/disk/a/1", "/mnt/disk/a/whole", "/mnt/vg/c"].map(PathBuf::from));
    }

    #[test]
    fn slashes_make_folders() {
        let tree = tree(&["vg/lv", "disk/b.img", "vg/home", "plain"]);
        let expected = ["/disk/b.img = disk/b.img", "/plain = plain", "/vg/home = vg/home", "/vg/lv = vg/lv"];
        assert_eq!(paths(&tree), expected);
        let vg = tree.child(ROOT, "vg").unwrap();
        let names: Vec<_> = tree.list(vg, 0).unwrap().map(|entry| entry.name.to_owned()).collect();
        assert_eq!(names, [".", "..", "lv", "home"]);
        assert_eq!(tree.list(vg, 1).unwrap().next().unwrap().node, ROOT);
    }

    #[test]
    fn a_name_that_is_also_a_prefix_is_a_folder_with_the_whole_in_it() {
        for names in [["disk/a.img", "disk/a.img/1"], ["disk/a.img/1", "disk/a.img"]] {
            let tree = tree(&names);
            assert_eq!(paths(&tree), ["/disk/a.img/1 = disk/a.img/1", "/disk/a.img/whole = disk/a.img"]);
        }
        let tree = tree(&["a", "a/whole", "a/_whole/x"]);
        assert_eq!(paths(&tree), ["/a/__whole = a", "/a/_whole/x = a/_whole/x", "/a/whole = a/whole"]);
    }

    #[test]
    fn names_that_are_no_paths_are_refused() {
        for bad in ["", "/x", "x/", "x//y", "x/../y", ".", "a\0b", &"n".repeat(256)] {
            let error = served(bad, 0).check_path().unwrap_err().to_string();
            assert!(error.contains(&format!("volume {bad:?} cannot be a file")), "{error}");
            assert_eq!(paths(&tree(&["ok", bad])), ["/ok = ok"]);
        }
    }

    #[test]
    fn a_read_only_volume_has_no_write_permission() {
        let read_only = Served { read_only: true, ..served("x", 0) };
        assert_eq!(shown([read_only], false).root_mode(), S_IFREG | 0o400);
        assert_eq!(shown([served("x", 0)], false).root_mode(), S_IFREG | 0o600);
    }

    #[test]
    fn files_keep_their_numbers_while_others_come_and_go_and_a_new_one_gets_another() {
        let files =
            Files::of(["vg/a", "vg/b", "vg/c"].iter().zip(0..).map(|(name, n)| served(name, n))).unwrap();
        let mut tree = Tree::new(true, (0, 0), 0o600);
        tree.follow(&files);
        let at = |tree: &Tree, name: &str| tree.walk(name);
        let before = ["vg", "vg/a", "vg/b", "vg/c"].map(|name| at(&tree, name).unwrap());
        // Whoever has listed the first two goes on with the third.
        let listed: Vec<_> = tree.list(before[0], 0).unwrap().take(4).map(|entry| entry.offset).collect();
        files.remove("vg/a").unwrap();
        files.add(served("vg/new", 3)).unwrap();
        files.replace("vg/b", Served { sectors: Sectors(16), ..served("vg/b", 7) }).unwrap();
        files.replace("vg/c", served("vg/renamed", 2)).unwrap();
        tree.follow(&files);
        assert_eq!(tree.attr(before[1]), None);
        assert_eq!([at(&tree, "vg"), at(&tree, "vg/b")], [Some(before[0]), Some(before[2])]);
        assert_eq!((at(&tree, "vg/c"), at(&tree, "vg/renamed")), (None, Some(before[3])));
        let grown = tree.served(before[2]).unwrap();
        assert_eq!((grown.volume, tree.attr(before[2]).unwrap().size), (VolumeId(7), 8192));
        let rest: Vec<_> =
            tree.list(before[0], listed[3]).unwrap().map(|entry| entry.name.to_owned()).collect();
        assert_eq!(rest, ["renamed", "new"]);
        assert!(!before.contains(&at(&tree, "vg/new").unwrap()));
        // Its partition has come: it is in a folder by now, and still the same file.
        files.add(served("vg/b/1", 4)).unwrap();
        tree.follow(&files);
        assert_eq!(at(&tree, "vg/b/whole"), Some(before[2]));
        assert_ne!(at(&tree, "vg/b"), Some(before[2]));
    }

    proptest! {
        #[test]
        fn every_volume_has_exactly_one_file(
            names in proptest::collection::btree_set("[ab_]{0,1}(whole)?[a](/[ab](/whole)?){0,3}", 1..12)
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let tree = tree(&names);
            let mut shown: Vec<_> =
                paths(&tree).iter().map(|line| line.split_once(" = ").unwrap().1.to_owned()).collect();
            shown.sort();
            prop_assert_eq!(shown, names);
        }
    }
}
