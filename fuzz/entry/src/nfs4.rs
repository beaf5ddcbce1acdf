//! Answers of an NFS server to COMPOUNDs of version 4.

use blockwork_format::nfs3::ReplyError;
use blockwork_format::nfs4::{
    HANDLE_MAX, WRITES_MAX, access_reply, commit_reply, find_reply, link_reply, read_reply, writes_reply,
};

use crate::input::Input;
use crate::nfs3::{check, check_status, refuse, result};
use crate::reached;

/// What is found was asked for in a folder, not in the root.
pub(crate) const HAS_FOLDER: u8 = 2;
/// It was asked for by its name.
pub(crate) const HAS_NAME: u8 = 4;
/// Kinds of calls: the number of a call modulo this. What it is divided by this is how many WRITEs there are but for one.
pub(crate) const CALLS: u8 = 6;

/// An answer. The input: flags u8, which call it answers u8, the message (or, with a flag, its result).
pub fn nfs4(data: &[u8]) {
    let mut input = Input(data);
    let (flags, call) = (input.u8(), input.u8());
    let Some((message, at)) = result(flags, input.0) else { return };
    match call % CALLS {
        0 => {
            let (has_folder, has_name) = (flags & HAS_FOLDER != 0, flags & HAS_NAME != 0);
            let found = cut(&message, |message| find_reply(message, at, has_folder, has_name));
            if let Ok(Ok(found)) = found {
                assert!(found.handle.as_bytes().len() <= HANDLE_MAX);
            }
            check(found);
        }
        1 => check(cut(&message, |message| link_reply(message, at))),
        2 => check(cut(&message, |message| access_reply(message, at))),
        3 => {
            let found = cut(&message, |message| read_reply(message, at));
            if let Ok(Ok(read)) = found {
                assert!(read.data_at <= message.len());
            }
            check(found);
        }
        4 => {
            let asked = 1 + usize::from(call / CALLS) % WRITES_MAX;
            match cut(&message, |message| writes_reply(message, at, asked)) {
                Ok(written) => match written.stopped {
                    None => {
                        reached("result");
                        assert_eq!(written.done.len(), asked);
                    }
                    Some(status) => {
                        reached(if written.done.is_empty() { "status" } else { "stopped" });
                        assert!(written.done.len() < asked);
                        check_status(status);
                    }
                },
                Err(error) => refuse(&error),
            }
        }
        _ => check(cut(&message, |message| commit_reply(message, at))),
    }
}

/// What is decoded of a message: of each beginning of it the same, or that it is short.
fn cut<'a, T: PartialEq + std::fmt::Debug>(
    message: &'a [u8],
    decode: impl Fn(&'a [u8]) -> Result<T, ReplyError>,
) -> Result<T, ReplyError> {
    let whole = decode(message);
    for len in 0..message.len() {
        let found = decode(&message[..len]);
        assert!(found == Err(ReplyError::Short) || found == whole, "{len} bytes: {found:?}, not {whole:?}");
    }
    whole
}
