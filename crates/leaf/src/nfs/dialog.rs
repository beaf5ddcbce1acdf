//! One question at a time to a server, before there is a worker: finding a file, and reading what it holds.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::address::NfsVersion;
use super::call::{Target, read_reply};
use blockwork_engine::reserved_ports;
use blockwork_format::nfs3::{self, MARK_BYTES, REPLY_MAX, Refusal, ReplyError, Status, decode_mark, reply};
use blockwork_format::nfs4;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt};

/// Longest wait for a server that is only looked for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes that one READ asks for.
const READ_BYTES: u32 = 1 << 20;

/// What of a socket's error tells nobody what has happened, in words that do: where its time is over, it is said that the call would block,
/// or is under way.
fn plainly(error: io::Error, patience: Duration) -> io::Error {
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::AGAIN | rustix::io::Errno::INPROGRESS) => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {patience:?}"))
        }
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            other("the server has closed the connection instead of answering")
        }
        _ => error,
    }
}

/// A connection on which one call at a time is made.
pub(super) struct Dialog {
    stream: TcpStream,
    xid: u32,
    patience: Duration,
}

fn other(error: impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

impl Dialog {
    /// Connects, where it may from a port below 1024.
    pub(super) fn connect(to: SocketAddr) -> io::Result<Dialog> {
        Dialog::connect_within(PATIENCE, to)
    }

    fn connect_within(patience: Duration, to: SocketAddr) -> io::Result<Dialog> {
        let (family, any): (_, IpAddr) = match to {
            SocketAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
        };
        let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
        for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
            sockopt::set_socket_timeout(&fd, timeout, Some(patience))?;
        }
        // Each look at a disk is a connection of its own: its port is free again when it ends.
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        // Not permitted, or none free: any port will do.
        let bound = |port: u16| bind(&fd, &SocketAddr::new(any, port));
        let _ = reserved_ports(std::process::id().into())
            .map(bound)
            .find(|bound| *bound != Err(rustix::io::Errno::ADDRINUSE));
        connect(&fd, &to).map_err(|errno| plainly(errno.into(), patience))?;
        Ok(Dialog { stream: TcpStream::from(fd), xid: std::process::id(), patience })
    }

    /// Asks, and decodes the answer: its result begins at the offset that `decode` is given.
    pub(super) fn ask<T>(
        &mut self,
        call: impl FnOnce(u32) -> Vec<u8>,
        decode: impl FnOnce(&[u8], usize) -> Result<T, ReplyError>,
    ) -> io::Result<Result<T, Refusal>> {
        let message = self.exchange(call, REPLY_MAX)?;
        match reply(&message).map_err(other)?.outcome {
            Ok(at) => decode(&message, at).map(Ok).map_err(other),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Sends a call and receives its answer, of which nothing but the xid is looked at.
    fn exchange(&mut self, call: impl FnOnce(u32) -> Vec<u8>, longest: usize) -> io::Result<Vec<u8>> {
        let patience = self.patience;
        self.send_and_receive(call, longest).map_err(|error| plainly(error, patience))
    }

    fn send_and_receive(&mut self, call: impl FnOnce(u32) -> Vec<u8>, longest: usize) -> io::Result<Vec<u8>> {
        self.xid = self.xid.wrapping_add(1);
        self.stream.write_all(&call(self.xid))?;
        let mut message = Vec::new();
        loop {
            let mut mark = [0; MARK_BYTES];
            self.stream.read_exact(&mut mark)?;
            let (len, last) = decode_mark(mark);
            let start = message.len();
            // Of such there could be any number, and no end.
            if len == 0 && !last {
                return Err(other("a fragment of an answer without a byte"));
            }
            if start + len as usize > longest {
                return Err(other(format_args!("an answer of more than {longest} bytes")));
            }
            message.resize(start + len as usize, 0);
            self.stream.read_exact(&mut message[start..])?;
            if last {
                break;
            }
        }
        let answered = reply(&message).map_err(other)?.xid;
        if answered != self.xid {
            return Err(other(format_args!("an answer to call {answered:#x}: expected {:#x}", self.xid)));
        }
        Ok(message)
    }

    /// Reads `into.len()` bytes at byte `offset`.
    pub(super) fn read(
        &mut self,
        target: &Target,
        offset: u64,
        read_max: u32,
        into: &mut [u8],
    ) -> io::Result<()> {
        let Target { version, credential, handle } = target;
        let mut done = 0;
        while done < into.len() {
            let left = u32::try_from(into.len() - done).unwrap_or(u32::MAX);
            let count = left.min(read_max).min(READ_BYTES);
            let at = offset + done as u64;
            let longest = REPLY_MAX + count as usize + 4;
            let call = |xid| match version {
                NfsVersion::V3 => nfs3::read(xid, credential, handle, at, count),
                NfsVersion::V4 => nfs4::read(xid, credential, handle, at, count),
            };
            let message = self.exchange(call, longest)?;
            let result_at = reply(&message).map_err(other)?.outcome.map_err(other)?;
            let found = read_reply(*version, &message, result_at).map_err(other)?;
            let got = found.map_err(|status: Status| io::Error::from_raw_os_error(status.errno()))?;
            let len = got.count.min(count) as usize;
            let bytes =
                message.get(got.data_at..got.data_at + len).ok_or_else(|| other(ReplyError::Short))?;
            if bytes.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into[done..done + len].copy_from_slice(bytes);
            done += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use blockwork_format::nfs3::{NFS_PROGRAM, VERSION, get_port, port_reply};

    use super::*;

    /// What comes of a question that is answered so, over and over, until nobody listens.
    fn asked(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> io::Result<Result<u16, Refusal>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let to = listener.local_addr()?;
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody connects");
            let mut call = [0; 60];
            stream.read_exact(&mut call).expect("a call");
            let answer = answer(&call[4..8]);
            while stream.write_all(&answer).is_ok() {}
        });
        let mut dialog = Dialog::connect(to)?;
        let result = dialog.ask(|xid| get_port(xid, NFS_PROGRAM, VERSION), port_reply);
        drop(dialog);
        server.join().expect("it does not panic");
        result
    }

    #[test]
    fn of_a_server_that_does_not_answer_it_is_told_what_it_does() -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut dialog = Dialog::connect_within(Duration::from_millis(50), listener.local_addr()?)?;
        let mut ask = || dialog.ask(|xid| get_port(xid, NFS_PROGRAM, VERSION), port_reply).unwrap_err();
        assert_eq!(ask().to_string(), "no answer for 50ms");
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; 60])?;
        stream.shutdown(std::net::Shutdown::Write)?;
        assert_eq!(ask().to_string(), "the server has closed the connection instead of answering");
        Ok(())
    }

    #[test]
    fn an_answer_is_put_together_and_one_without_end_is_refused() {
        let mark = |len: u32, last: u32| (len | last << 31).to_be_bytes().to_vec();
        let units = |values: &[u32]| values.iter().flat_map(|value| value.to_be_bytes()).collect::<Vec<u8>>();
        let whole =
            asked(move |xid| [mark(4, 0), xid.to_vec(), mark(24, 1), units(&[1, 0, 0, 0, 0, 2049])].concat());
        assert_eq!(whole.unwrap(), Ok(2049));
        for (answer, said) in [
            (mark(0, 0), "without a byte"),
            ([mark(1024, 0), vec![0; 1024]].concat(), "more than 2048 bytes"),
            ([mark(28, 1), units(&[7, 1, 0, 0, 0, 0, 2049])].concat(), "an answer to call 0x7: expected"),
        ] {
            let error = asked(move |_| answer.clone()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
