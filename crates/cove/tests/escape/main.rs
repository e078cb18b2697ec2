//! The attack suite: hostile programs as data, in `cases/`. Each names the claim of `docs/security.md` that it holds,
//! and runs as root and as an ordinary user, with the system call filter and without, among canaries on the host.

mod canary;
mod case;
mod run;
mod state;

use std::collections::BTreeSet;

/// A test for each case, so that a failure has a name.
macro_rules! cases {
    ($($test:ident => $name:literal,)*) => {
        const CASES: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                run::check($name);
            }
        )*
    };
}

cases! {
    a05_mount => "A05-mount",
}

#[test]
fn every_file_is_a_case_of_the_list() {
    let listed: BTreeSet<String> = CASES.iter().map(|name| format!("{name}.toml")).collect();
    let found: BTreeSet<String> = std::fs::read_dir(case::folder())
        .expect("there is a folder of cases")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, listed);
}

/// Not a test: the part of one that has to run in a process of its own.
#[test]
#[ignore = "started by the cases themselves"]
fn unfiltered_child() {
    run::unfiltered_child();
}
