//! network_namespaces(7): the new namespace has a loopback of its own, which is down at first. Servers and clients
//! inside one sandbox may talk over it; it leads nowhere else.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

use crate::report::{JailStep, StepContext, StepFailure};
use crate::sys;

/// Brings the loopback of this network namespace up.
pub(crate) fn bring_loopback_up() -> Result<(), StepFailure> {
    let action = || "bring the sandbox's loopback up".to_owned();
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .during(JailStep::Network, action)?;
    sys::bring_loopback_up(socket.as_fd()).during(JailStep::Network, action)
}

/// sock_diag(7): opens a socket that reports the sockets of this network namespace, also when another process holds it.
pub(crate) fn open_diagnosis() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))
}
