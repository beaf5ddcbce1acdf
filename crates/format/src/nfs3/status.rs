//! What a server says went wrong, by its number, its name in RFC 1813 and RFC 7530, and the error number that Linux has for it.

use std::fmt;

/// A status other than OK, of NFS or of the mount protocol (whose numbers are a subset).
/// What versions 3 and 4 both have has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// The server is busy getting the file: ask again later (in version 4 it is called DELAY).
    pub const JUKEBOX: Status = Status(10008);
    /// It has restarted, and waits for those that had something open before.
    pub const GRACE: Status = Status(10013);
    /// It has no room for what it was asked, of which it has perhaps done a part.
    pub const RESOURCE: Status = Status(10018);
    /// The handle belongs to no file any more.
    pub const STALE: Status = Status(70);
    /// No such file or folder.
    pub const NOENT: Status = Status(2);

    /// The same will be done if it is asked again later.
    pub fn asks_for_patience(self) -> bool {
        matches!(self, Status::JUKEBOX | Status::GRACE | Status::RESOURCE)
    }

    /// Of less it would perhaps be done: TOOSMALL, RESOURCE, BADXDR.
    pub fn is_too_much(self) -> bool {
        matches!(self.0, 10005 | 10018 | 10036)
    }

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

/// RFC 1813, section 2.6, RFC 7530, section 13.1, and errno(3).
const STATUS: &[(u32, &str, i32)] = &[
    (1, "NFSERR_PERM", 1),
    (2, "NFSERR_NOENT", 2),
    (5, "NFSERR_IO", EIO),
    (6, "NFSERR_NXIO", 6),
    (13, "NFSERR_ACCES", 13),
    (17, "NFSERR_EXIST", 17),
    (18, "NFSERR_XDEV", 18),
    (19, "NFSERR_NODEV", 19),
    (20, "NFSERR_NOTDIR", 20),
    (21, "NFSERR_ISDIR", 21),
    (22, "NFSERR_INVAL", 22),
    (27, "NFSERR_FBIG", 27),
    (28, "NFSERR_NOSPC", 28),
    (30, "NFSERR_ROFS", 30),
    (31, "NFSERR_MLINK", 31),
    (63, "NFSERR_NAMETOOLONG", 36),
    (66, "NFSERR_NOTEMPTY", 39),
    (69, "NFSERR_DQUOT", 122),
    (70, "NFSERR_STALE", 116),
    (71, "NFSERR_REMOTE", 66),
    (10001, "NFSERR_BADHANDLE", 116),
    (10002, "NFSERR_NOT_SYNC", EIO),
    (10003, "NFSERR_BAD_COOKIE", EIO),
    (10004, "NFSERR_NOTSUPP", 95),
    (10005, "NFSERR_TOOSMALL", EIO),
    (10006, "NFSERR_SERVERFAULT", EIO),
    (10007, "NFSERR_BADTYPE", EIO),
    (10008, "NFSERR_JUKEBOX", 11),
    (10011, "NFSERR_EXPIRED", EIO),
    (10012, "NFSERR_LOCKED", 16),
    (10013, "NFSERR_GRACE", 11),
    (10014, "NFSERR_FHEXPIRED", 116),
    (10015, "NFSERR_SHARE_DENIED", 16),
    (10016, "NFSERR_WRONGSEC", 1),
    (10018, "NFSERR_RESOURCE", 11),
    (10019, "NFSERR_MOVED", 116),
    (10020, "NFSERR_NOFILEHANDLE", EIO),
    (10021, "NFSERR_MINOR_VERS_MISMATCH", 93),
    (10022, "NFSERR_STALE_CLIENTID", EIO),
    (10023, "NFSERR_STALE_STATEID", EIO),
    (10024, "NFSERR_OLD_STATEID", EIO),
    (10025, "NFSERR_BAD_STATEID", EIO),
    (10029, "NFSERR_SYMLINK", 40),
    (10036, "NFSERR_BADXDR", EIO),
    (10038, "NFSERR_OPENMODE", 13),
    (10040, "NFSERR_BADCHAR", 22),
    (10041, "NFSERR_BADNAME", 22),
    (10044, "NFSERR_OP_ILLEGAL", 95),
    (10046, "NFSERR_FILE_OPEN", 16),
    (10047, "NFSERR_ADMIN_REVOKED", EIO),
];
