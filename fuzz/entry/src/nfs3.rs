//! Answers of an NFS server.

use blockwork_format::nfs3::{
    REPLY_MAX, ReplyError, Status, access_reply, address_reply, attributes_reply, commit_reply, fsinfo_reply,
    link_reply, lookup_reply, mount_reply, port_reply, read_reply, reply, reply_xid, write_reply,
};

use crate::input::Input;
use crate::{assert_printable, reached};

/// The reply's head is a good one, and the input is the result behind it.
pub(crate) const MEND_HEAD: u8 = 1;
const XID: u32 = 9;

/// An answer. The input: flags u8, which call it answers u8, the message (or, with a flag, its result).
pub fn nfs3(data: &[u8]) {
    let mut input = Input(data);
    let (flags, procedure) = (input.u8(), input.u8());
    let Some((message, at)) = result(flags, input.0) else { return };
    let message = &message[..];
    match procedure % 11 {
        0 => check(port_reply(message, at).map(Ok)),
        1 => check(mount_reply(message, at)),
        2 => check(attributes_reply(message, at)),
        3 => check(lookup_reply(message, at)),
        4 => check(access_reply(message, at)),
        5 => check(fsinfo_reply(message, at)),
        6 => {
            let found = read_reply(message, at);
            if let Ok(Ok(read)) = found {
                assert!(read.data_at <= message.len());
            }
            check(found);
        }
        7 => check(write_reply(message, at)),
        8 => check(commit_reply(message, at)),
        9 => check(address_reply(message, at).map(Ok)),
        _ => check(link_reply(message, at)),
    }
}

/// The message that an input is, and where its result begins. `None`: it has none, and what it says instead was checked.
pub(crate) fn result(flags: u8, input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let head: Vec<u8> = [XID, 1, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect();
    let mut message = if flags & MEND_HEAD != 0 { [&head, input].concat() } else { input.to_vec() };
    message.truncate(REPLY_MAX);
    let reply = reply(&message).inspect_err(refuse).ok()?;
    reached("head");
    assert_eq!(Some(reply.xid), reply_xid(&message));
    let at = reply.outcome.inspect_err(|refusal| assert_printable(&refusal.to_string())).ok()?;
    assert!(at <= message.len());
    Some((message, at))
}

pub(crate) fn check<T>(found: Result<Result<T, Status>, ReplyError>) {
    match found {
        Ok(Ok(_)) => reached("result"),
        Ok(Err(status)) => {
            reached("status");
            check_status(status);
        }
        Err(error) => refuse(&error),
    }
}

pub(crate) fn check_status(status: Status) {
    assert!(status.errno() > 0);
    assert_printable(&status.to_string());
}

pub(crate) fn refuse(error: &ReplyError) {
    reached(if *error == ReplyError::Short { "short" } else { "refused" });
    assert_printable(&error.to_string());
}
