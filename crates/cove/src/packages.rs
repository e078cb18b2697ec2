//! Packages for every session: names that an operator may ask for, the folders that hold what was installed, and the
//! programs that install it. All of this happens on the host, outside any sandbox, and runs no code of a package.

mod install;
mod lock;
mod name;
mod store;

pub use name::{PackageKind, PackageRequest};
pub use store::{BuiltLayer, PackageRecord, PackageStore, StoreUpdate};

pub(crate) use install::{NodeInstaller, PackageInstaller, PythonInstaller};
