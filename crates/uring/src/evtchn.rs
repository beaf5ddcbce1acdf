//! One end of an event channel of Xen's, by `/dev/xen/evtchn`: a bell between this domain and another.
//!
//! An end that has been rung is masked until [`EventPort::rearm`], so that a domain that rings without end costs one wake-up for
//! each turn that its port gets. Rings that come meanwhile are one when it is armed again. The descriptor is readable when it has
//! been rung: [`Uring::watch`](crate::Uring::watch) it.
//!
//! Source: the kernel's `include/uapi/xen/evtchn.h`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

/// Where the kernel has it.
const DEVICE: &str = "/dev/xen/evtchn";

/// `_IOC(_IOC_NONE, 'E', number, size)`.
const fn request(number: libc::Ioctl, size: libc::Ioctl) -> libc::Ioctl {
    size << 16 | 0x45 << 8 | number
}

const BIND_INTERDOMAIN: libc::Ioctl = request(1, 8);
const NOTIFY: libc::Ioctl = request(4, 4);

/// Our end of an event channel. It is closed when this and all clones of its descriptor are dropped.
#[derive(Debug)]
pub struct EventPort {
    fd: Arc<OwnedFd>,
    port: u32,
}

impl EventPort {
    /// Whether there are event channels: opens the device, and nothing else.
    ///
    /// # Errors
    /// It is not there, or not for us.
    pub fn probe() -> io::Result<()> {
        open(Path::new(DEVICE)).map(drop)
    }

    /// Binds a new end to the end `remote` of `domain`'s, which that domain has opened for this one.
    ///
    /// # Errors
    /// There is no such end, or somebody else is bound to it; or there are no event channels.
    pub fn bind(domain: u32, remote: u32) -> io::Result<EventPort> {
        EventPort::bind_at(Path::new(DEVICE), domain, remote)
    }

    fn bind_at(path: &Path, domain: u32, remote: u32) -> io::Result<EventPort> {
        let file = open(path)?;
        let words = [domain, remote];
        // SAFETY: `words` is the kernel's struct, which it only reads, and outlives the call.
        let port = unsafe { libc::ioctl(file.as_raw_fd(), BIND_INTERDOMAIN, words.as_ptr()) };
        let port = u32::try_from(port).map_err(|_| io::Error::last_os_error())?;
        Ok(EventPort { fd: Arc::new(file.into()), port })
    }

    /// The descriptor to watch.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Rings at the other end.
    ///
    /// # Errors
    /// The channel is closed.
    #[inline]
    pub fn notify(&self) -> io::Result<()> {
        // SAFETY: the port is the kernel's struct, which it only reads, and outlives the call.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), NOTIFY, &raw const self.port) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes note of rings so far, and lets the next one come. Whether it was rung.
    ///
    /// # Errors
    /// The kernel lost rings, or the descriptor is none of its event channels.
    pub fn rearm(&self) -> io::Result<bool> {
        let mut rung = [0; 4];
        match rustix::io::read(&*self.fd, &mut rung) {
            Ok(_) => {
                rustix::io::write(&*self.fd, &rung)?;
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernels_header() {
        assert_eq!((BIND_INTERDOMAIN, NOTIFY), (0x0008_4501, 0x0004_4504));
    }

    #[test]
    fn a_file_that_is_no_such_device_binds_nothing() {
        let error = EventPort::bind_at(Path::new("/dev/null"), 1, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
