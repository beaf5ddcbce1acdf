//! What a mount shows: one file, or folders with a file for each volume. Fixed while it is mounted.
//!
//! Invariants:
//! 1. Node numbers are indices (plus one), never used again, and valid for the life of the mount, so the kernel's
//!    FORGETs need no counting.
//! 2. Every volume has exactly one file, and every file a volume.
//! 3. A volume whose name is also the beginning of others' (`disk/a.img` beside `disk/a.img/1`) becomes a folder, since
//!    a name cannot be both; the volume itself is the file [`WHOLE`] in it (`disk/a.img/whole`), with
//!    underscores put before it if a volume has that name already.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use blockwork_engine::{Sectors, VolumeId};

use super::abi::{Attr, NAME_MAX, ROOT, S_IFDIR, S_IFREG};

/// The file of a volume whose own name is a folder.
pub const WHOLE: &str = "whole";

/// Why volumes cannot be shown as files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A part of a name is empty, `.`, `..`, too long, or holds a NUL.
    #[error(
        "volume {name:?} cannot be a file: {part:?} is not a file name (expected 1 to {NAME_MAX} bytes, not `.` or `..`, without NUL); serve it by NBD, or alone over one file"
    )]
    Name {
        /// The volume.
        name: String,
        /// The part.
        part: String,
    },
    /// Two volumes have one name.
    #[error("two volumes are called {name:?}; serve one of them by itself")]
    Twice {
        /// The name.
        name: String,
    },
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

#[derive(Debug)]
enum Node {
    File(Served),
    Folder { parent: u64, entries: BTreeMap<String, u64> },
}

/// Files and folders by node number.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    owner: (u32, u32),
    file_mode: u32,
    time: u64,
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
}

impl Tree {
    fn new(owner: (u32, u32), file_mode: u32) -> Tree {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Tree { nodes: Vec::new(), owner, file_mode, time }
    }

    /// The root is `volume`'s file.
    pub fn file(volume: Served, owner: (u32, u32), file_mode: u32) -> Tree {
        let mut tree = Tree::new(owner, file_mode);
        tree.nodes.push(Node::File(volume));
        tree
    }

    /// The root is a folder with a file for each of `volumes`, in folders as their names' slashes say.
    ///
    /// # Errors
    /// A name that cannot be a path, or is there twice.
    pub fn folder(volumes: Vec<Served>, owner: (u32, u32), file_mode: u32) -> Result<Tree, TreeError> {
        let mut tree = Tree::new(owner, file_mode);
        tree.nodes.push(Node::Folder { parent: ROOT, entries: BTreeMap::new() });
        for served in &volumes {
            let mut parts = served.name.split('/');
            let bad = |part: &&str| {
                matches!(*part, "" | "." | "..") || part.len() > NAME_MAX || part.contains('\0')
            };
            if let Some(part) = parts.find(bad) {
                return Err(TreeError::Name { name: served.name.clone(), part: part.to_owned() });
            }
        }
        // Folders first, so that it is known which names are taken by them.
        for served in &volumes {
            if let Some((folder, _)) = served.name.rsplit_once('/') {
                folder.split('/').fold(ROOT, |at, part| tree.subfolder(at, part));
            }
        }
        // Whole ones last: their file's name must give way to a volume that has it in its own right.
        let (whole, plain): (Vec<_>, Vec<_>) =
            volumes.into_iter().partition(|served| tree.walk(&served.name).is_some());
        for served in plain {
            let (folder, file) = served.name.rsplit_once('/').unwrap_or(("", &served.name));
            let (at, file) = (tree.walk(folder).expect("made above"), file.to_owned());
            tree.add_file(at, file, served)?;
        }
        for served in whole {
            let at = tree.walk(&served.name).expect("partitioned by this");
            if let Some(Node::File(other)) = tree.get(at) {
                return Err(TreeError::Twice { name: other.name.clone() });
            }
            let mut file = WHOLE.to_owned();
            while tree.child(at, &file).is_some_and(|node| !tree.is_whole(node, &served.name)) {
                file.insert(0, '_');
            }
            tree.add_file(at, file, served)?;
        }
        Ok(tree)
    }

    fn is_whole(&self, node: u64, name: &str) -> bool {
        self.served(node).is_some_and(|served| served.name == name)
    }

    fn get(&self, node: u64) -> Option<&Node> {
        let index = usize::try_from(node.checked_sub(ROOT)?).ok()?;
        self.nodes.get(index)
    }

    fn entries_mut(&mut self, node: u64) -> &mut BTreeMap<String, u64> {
        let index = usize::try_from(node - ROOT).expect("our own node number");
        match &mut self.nodes[index] {
            Node::Folder { entries, .. } => entries,
            Node::File(_) => unreachable!("folders are made before files"),
        }
    }

    fn push(&mut self, node: Node) -> u64 {
        self.nodes.push(node);
        self.nodes.len() as u64
    }

    fn subfolder(&mut self, parent: u64, name: &str) -> u64 {
        if let Some(&node) = self.entries_mut(parent).get(name) {
            return node;
        }
        let node = self.push(Node::Folder { parent, entries: BTreeMap::new() });
        self.entries_mut(parent).insert(name.to_owned(), node);
        node
    }

    fn add_file(&mut self, parent: u64, name: String, served: Served) -> Result<(), TreeError> {
        if self.child(parent, &name).is_some() {
            return Err(TreeError::Twice { name: served.name });
        }
        let node = self.push(Node::File(served));
        self.entries_mut(parent).insert(name, node);
        Ok(())
    }

    fn walk(&self, path: &str) -> Option<u64> {
        path.split('/').filter(|part| !part.is_empty()).try_fold(ROOT, |at, part| self.child(at, part))
    }

    /// The node called `name` in the folder `parent`.
    pub fn child(&self, parent: u64, name: &str) -> Option<u64> {
        match self.get(parent)? {
            Node::Folder { entries, .. } => entries.get(name).copied(),
            Node::File(_) => None,
        }
    }

    /// The volume whose file `node` is.
    #[inline]
    pub fn served(&self, node: u64) -> Option<&Served> {
        match self.get(node)? {
            Node::File(served) => Some(served),
            Node::Folder { .. } => None,
        }
    }

    /// All volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Served> {
        self.nodes.iter().filter_map(|node| if let Node::File(served) = node { Some(served) } else { None })
    }

    /// Where the files are that can be written, if the root is at `root`.
    pub fn writable(&self, root: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut left = vec![(ROOT, root.to_owned())];
        while let Some((node, path)) = left.pop() {
            match self.get(node) {
                Some(Node::File(served)) if !served.read_only => files.push(path),
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
        let (mode, nlink, size) = match self.get(node)? {
            Node::File(served) => {
                let mode = if served.read_only { self.file_mode & !0o222 } else { self.file_mode };
                (S_IFREG | mode, 1, served.sectors.bytes())
            }
            Node::Folder { .. } => (S_IFDIR | 0o555, 2, 0),
        };
        let (uid, gid) = self.owner;
        Some(Attr { ino: node, size, mode, nlink, uid, gid, time: self.time, blksize: super::BLOCK })
    }

    /// The root's type and permissions, for mount(2).
    pub fn root_mode(&self) -> u32 {
        self.attr(ROOT).expect("there is a root").mode
    }

    /// The entries of a folder from the `skip`-th on; none if it is a file.
    pub fn list(&self, node: u64, skip: usize) -> Option<impl Iterator<Item = Entry<'_>>> {
        let Node::Folder { parent, entries } = self.get(node)? else { return None };
        let dots = [(".", node), ("..", *parent)].map(|(name, node)| Entry { name, node, kind: S_IFDIR });
        let children = entries.iter().map(|(name, &node)| {
            let kind = if self.served(node).is_some() { S_IFREG } else { S_IFDIR };
            Entry { name, node, kind }
        });
        Some(dots.into_iter().chain(children).skip(skip))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn served(name: &str, number: u16) -> Served {
        Served { name: name.into(), volume: VolumeId(number), sectors: Sectors(8), read_only: false }
    }

    fn tree(names: &[&str]) -> Result<Tree, TreeError> {
        let volumes = names.iter().zip(0..).map(|(name, number)| served(name, number)).collect();
        Tree::folder(volumes, (0, 0), 0o600)
    }

    fn paths(tree: &Tree) -> Vec<String> {
        fn visit(tree: &Tree, node: u64, path: &str, out: &mut Vec<String>) {
            for entry in tree.list(node, 2).unwrap() {
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
        let alone = |n: usize| Tree::file(volumes[n].clone(), (0, 0), 0o600).writable(root);
        assert_eq!((alone(0), alone(2)), (vec![root.to_owned()], vec![]));
        let mut files = Tree::folder(volumes.clone(), (0, 0), 0o600).unwrap().writable(root);
        files.sort();
        assert_eq!(files, ["/mnt/disk/a/1", "/mnt/disk/a/whole", "/mnt/vg/c"].map(PathBuf::from));
    }

    #[test]
    fn slashes_make_folders() {
        let tree = tree(&["vg/lv", "disk/b.img", "vg/home", "plain"]).unwrap();
        let expected = ["/disk/b.img = disk/b.img", "/plain = plain", "/vg/home = vg/home", "/vg/lv = vg/lv"];
        assert_eq!(paths(&tree), expected);
        let vg = tree.child(ROOT, "vg").unwrap();
        let names: Vec<_> = tree.list(vg, 0).unwrap().map(|entry| entry.name.to_owned()).collect();
        assert_eq!(names, [".", "..", "home", "lv"]);
        assert_eq!(tree.list(vg, 1).unwrap().next().unwrap().node, ROOT);
    }

    #[test]
    fn a_name_that_is_also_a_prefix_is_a_folder_with_the_whole_in_it() {
        for names in [["disk/a.img", "disk/a.img/1"], ["disk/a.img/1", "disk/a.img"]] {
            let tree = tree(&names).unwrap();
            assert_eq!(paths(&tree), ["/disk/a.img/1 = disk/a.img/1", "/disk/a.img/whole = disk/a.img"]);
        }
        let tree = tree(&["a", "a/whole", "a/_whole/x"]).unwrap();
        assert_eq!(paths(&tree), ["/a/__whole = a", "/a/_whole/x = a/_whole/x", "/a/whole = a/whole"]);
    }

    #[test]
    fn names_that_are_no_paths_and_names_given_twice_are_refused() {
        for bad in ["", "/x", "x/", "x//y", "x/../y", ".", "a\0b", &"n".repeat(256)] {
            let error = tree(&["ok", bad]).unwrap_err();
            assert!(matches!(&error, TreeError::Name { name, .. } if name == bad), "{error}");
        }
        assert_eq!(tree(&["a", "b", "a"]).unwrap_err(), TreeError::Twice { name: "a".into() });
        assert_eq!(tree(&["a", "a/b", "a"]).unwrap_err(), TreeError::Twice { name: "a".into() });
    }

    #[test]
    fn a_read_only_volume_has_no_write_permission() {
        let read_only = Served { read_only: true, ..served("x", 0) };
        assert_eq!(Tree::file(read_only, (0, 0), 0o644).root_mode(), S_IFREG | 0o444);
        assert_eq!(Tree::file(served("x", 0), (0, 0), 0o600).root_mode(), S_IFREG | 0o600);
    }

    proptest! {
        #[test]
        fn every_volume_has_exactly_one_file(
            names in proptest::collection::btree_set("[ab_]{0,1}(whole)?[a](/[ab](/whole)?){0,3}", 1..12)
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let tree = tree(&names).unwrap();
            let mut shown: Vec<_> =
                paths(&tree).iter().map(|line| line.split_once(" = ").unwrap().1.to_owned()).collect();
            shown.sort();
            prop_assert_eq!(shown, names);
        }
    }
}
