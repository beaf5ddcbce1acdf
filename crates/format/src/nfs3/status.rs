//! What a server says went wrong, by its number, its name in RFC 1813 and the error number that Linux has for it.

use std::fmt;

/// A status other than OK, of NFS or of the mount protocol (whose numbers are a subset).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// The server is busy getting the file: ask again later.
    pub const JUKEBOX: Status = Status(10008);
    /// The handle belongs to no file any more.
    pub const STALE: Status = Status(70);
    /// No such file or folder.
    pub const NOENT: Status = Status(2);

    /// Its name, and Linux's number for it.
    fn entry(self) -> Option<&'static (u32, &'static str, i32)> {
        STATUS.iter().find(|(number, _, _)| *number == self.0)
    }

    /// What Linux calls it (errno(3)). EIO, if the number is in no standard.
    pub fn errno(self) -> i32 {
        self.entry().map_or(EIO, |(_, _, errno)| *errno)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "status {}", self.0),
        }
    }
}

const EIO: i32 = 5;

/// RFC 1813, section 2.6, and errno(3).
const STATUS: &[(u32, &str, i32)] = &[
    (1, "NFS3ERR_PERM", 1),
    (2, "NFS3ERR_NOENT", 2),
    (5, "NFS3ERR_IO", EIO),
    (6, "NFS3ERR_NXIO", 6),
    (13, "NFS3ERR_ACCES", 13),
    (17, "NFS3ERR_EXIST", 17),
    (18, "NFS3ERR_XDEV", 18),
    (19, "NFS3ERR_NODEV", 19),
    (20, "NFS3ERR_NOTDIR", 20),
    (21, "NFS3ERR_ISDIR", 21),
    (22, "NFS3ERR_INVAL", 22),
    (27, "NFS3ERR_FBIG", 27),
    (28, "NFS3ERR_NOSPC", 28),
    (30, "NFS3ERR_ROFS", 30),
    (31, "NFS3ERR_MLINK", 31),
    (63, "NFS3ERR_NAMETOOLONG", 36),
    (66, "NFS3ERR_NOTEMPTY", 39),
    (69, "NFS3ERR_DQUOT", 122),
    (70, "NFS3ERR_STALE", 116),
    (71, "NFS3ERR_REMOTE", 66),
    (10001, "NFS3ERR_BADHANDLE", 116),
    (10002, "NFS3ERR_NOT_SYNC", EIO),
    (10003, "NFS3ERR_BAD_COOKIE", EIO),
    (10004, "NFS3ERR_NOTSUPP", 95),
    (10005, "NFS3ERR_TOOSMALL", EIO),
    (10006, "NFS3ERR_SERVERFAULT", EIO),
    (10007, "NFS3ERR_BADTYPE", EIO),
    (10008, "NFS3ERR_JUKEBOX", 11),
];
