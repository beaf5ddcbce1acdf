//! The repository as the rules see it: its texts, and its packages as Cargo tells them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What is not ours to judge: what is built, git's own (a folder, or in a second work tree a file), inputs that a fuzzer made.
const SKIPPED: [&str; 6] = ["target", ".git", "artifacts", "coverage", "corpus", "proptest-regressions"];

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, from the repository's root.
    pub path: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What was found, and what to do.
    pub what: String,
}

impl Finding {
    /// At a line of a file; line 0 for the file as a whole.
    pub fn at(path: impl Into<String>, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "tidy: {}: {}", self.path, self.what),
            line => write!(f, "tidy: {}:{line}: {}", self.path, self.what),
        }
    }
}

/// A text file.
#[derive(Debug, Clone)]
pub struct Text {
    /// Its path from the repository's root, with `/`.
    pub path: String,
    /// What it says.
    pub text: String,
}

impl Text {
    /// Whether its name ends in `.` and this.
    pub fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    /// Its lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// A package of the workspace, or of `fuzz/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder from the repository's root.
    pub folder: String,
    /// Names of the packages that it is built from; not those that only its tests and benches want.
    pub dependencies: Vec<String>,
    /// Kind (`lib`, `bin`, `test`, `bench`, `example`), name and source of everything that Cargo builds of it.
    pub targets: Vec<(String, String, String)>,
}

/// The repository.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    texts: Vec<Text>,
    packages: Vec<Package>,
    fuzz: Vec<Package>,
}

impl Tree {
    /// Reads the repository at `root`. Errors: a file or folder cannot be read, or `cargo metadata` fails.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut texts = Vec::new();
        read_folder(root, root, &mut texts)?;
        texts.sort_by(|a, b| a.path.cmp(&b.path));
        let packages = packages_of(root, &root.join("Cargo.toml"))?;
        let fuzz = root.join("fuzz/Cargo.toml");
        let fuzz = if fuzz.exists() { packages_of(root, &fuzz)? } else { Vec::new() };
        Ok(Tree { root: root.to_owned(), texts, packages, fuzz })
    }

    /// All text files, by path.
    pub fn texts(&self) -> &[Text] {
        &self.texts
    }

    /// What the file says, where it is there.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.iter().find(|text| text.path == path).map(|text| text.text.as_str())
    }

    /// Whether there is a file or a folder.
    pub fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// How many files are in a folder.
    pub fn files_in(&self, folder: &str) -> usize {
        fs::read_dir(self.root.join(folder)).map_or(0, Iterator::count)
    }

    /// The workspace's packages.
    pub fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// The package of the fuzz targets, which stands beside the workspace.
    pub fn fuzz(&self) -> &[Package] {
        &self.fuzz
    }
}

fn read_folder(root: &Path, folder: &Path, texts: &mut Vec<Text>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
            continue;
        }
        if kind.is_dir() {
            read_folder(root, &path, texts)?;
        } else if kind.is_file() {
            let bytes = match fs::read(&path) {
                // Another test's scratch file, gone between the listing and the reading.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read?,
            };
            if let Ok(text) = String::from_utf8(bytes) {
                texts.push(Text { path: from_root(root, &path), text });
            }
        }
    }
    Ok(())
}

fn from_root(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

/// As `cargo metadata` tells them.
fn packages_of(root: &Path, manifest: &Path) -> io::Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "cargo metadata for {}: {}",
            manifest.display(),
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(packages.iter().map(|package| package_of(root, package)).collect())
}

fn package_of(root: &Path, package: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    Package {
        name: text(&package["name"]),
        folder: manifest.parent().map(|folder| from_root(root, folder)).unwrap_or_default(),
        dependencies: list(&package["dependencies"])
            .iter()
            .filter(|dependency| dependency["kind"] != "dev")
            .map(|dependency| text(&dependency["name"]))
            .collect(),
        targets: list(&package["targets"])
            .iter()
            .map(|target| {
                let source = from_root(root, Path::new(&text(&target["src_path"])));
                (text(&target["kind"][0]), text(&target["name"]), source)
            })
            .collect(),
    }
}
