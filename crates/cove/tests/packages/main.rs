//! The packages that are published, each installed by the program that people install it with, into a home of an
//! ordinary user: Cove runs there, and removing the package leaves nothing. `cargo xtask test --all` makes the packages
//! of the program under test.

mod cargo;
mod debian;
mod install_home;
mod npm;
mod release_files;
mod wheel;

/// Deadlines only catch programs that hang: they are far above what a busy machine needs.
const PATIENCE: &str = "300";
