//! network_namespaces(7): the new namespace has a loopback of its own, down. Servers and clients inside one sandbox
//! may talk over it; it leads nowhere else.

use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::report::{During, Step, StepFailure};
use crate::sys;

pub(crate) fn bring_loopback_up() -> Result<(), StepFailure> {
    let action = || "bring the sandbox's loopback up".to_owned();
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .during(Step::Network, action)?;
    sys::bring_loopback_up(socket.as_fd()).during(Step::Network, action)
}
