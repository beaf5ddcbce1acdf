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
    let head: Vec<u8> = [XID, 1, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect();
    let message = if flags & MEND_HEAD != 0 { [&head, input.0].concat() } else { input.0.to_vec() };
    let message = &message[..message.len().min(REPLY_MAX)];
    let at = match reply(message) {
        Err(error) => return refuse(&error),
        Ok(reply) => {
            reached("head");
            assert_eq!(Some(reply.xid), reply_xid(message));
            match reply.outcome {
                Err(refusal) => return assert_printable(&refusal.to_string()),
                Ok(at) => at,
            }
        }
    };
    assert!(at <= message.len());
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

fn check<T>(found: Result<Result<T, Status>, ReplyError>) {
    match found {
        Ok(Ok(_)) => reached("result"),
        Ok(Err(status)) => {
            reached("status");
            assert!(status.errno() > 0);
            assert_printable(&status.to_string());
        }
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &ReplyError) {
    reached(if *error == ReplyError::Short { "short" } else { "refused" });
    assert_printable(&error.to_string());
}
