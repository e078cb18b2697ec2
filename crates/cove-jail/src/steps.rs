//! The steps of making a sandbox, one file a kernel facility. `enter` puts them in order.

pub(crate) mod caps;
pub(crate) mod cgroup;
pub(crate) mod fds;
pub(crate) mod landlock;
pub(crate) mod lifetime;
pub(crate) mod mount;
pub(crate) mod namespaces;
pub(crate) mod net;
pub(crate) mod pivot;
pub(crate) mod rlimit;
pub(crate) mod user;
