//! `cargo xtask advisories`: checks the resolved dependencies against the RustSec database, with `cargo-deny` and the
//! settings in `deny.toml`. The database is a git repository on the network, so CI does not run this. A release runs
//! it with `--required`. Without that flag, a database that cannot be fetched is reported and is no failure.

use std::process::Command;

use crate::attempts::ErrorContext;
use crate::cargo;

const MISSING: &str = "\
could not find cargo-deny
hint: `cargo install --locked cargo-deny`";

const NOT_CHECKED: &str = "\
advisories: NOT CHECKED: cargo-deny could not fetch the advisory database; its reason is above
hint: start again where the network reaches it";

/// How to treat a database that cannot be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseNeed {
    /// The check is left out, and the output says so.
    Optional,
    /// It is a failure: a release without this check must not look like one with it.
    Required,
}

pub(crate) fn run(fetch: DatabaseNeed) -> Result<(), String> {
    if !cargo::has("deny") {
        return Err(MISSING.to_owned());
    }
    check(fetch, || cargo::command(&["deny"]))
}

/// `deny` starts a command line of cargo-deny. Fetching comes first and on its own, because the check has the same
/// exit code for advisories and for a database that it could not fetch.
fn check(fetch: DatabaseNeed, deny: impl Fn() -> Command) -> Result<(), String> {
    let succeeds = |arguments: &[&str]| {
        deny().args(arguments).status().map(|status| status.success()).could_not("start cargo-deny")
    };
    if !succeeds(&["fetch", "db"])? {
        if fetch == DatabaseNeed::Required {
            return Err(NOT_CHECKED.to_owned());
        }
        println!("{NOT_CHECKED}");
        return Ok(());
    }
    if succeeds(&["check", "--disable-fetch", "advisories"])? {
        println!("advisories: none");
        return Ok(());
    }
    Err("advisories: cargo-deny found what it names above\n\
         hint: `cargo update -p NAME` takes the corrected version, where there is one"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake cargo-deny with these results: a shell that reads its first argument.
    fn deny(fetched: bool, clean: bool) -> impl Fn() -> Command {
        let code = |well| if well { 0 } else { 1 };
        let script = format!("case $1 in fetch) exit {};; check) exit {};; esac", code(fetched), code(clean));
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "cargo-deny"]);
            command
        }
    }

    #[test]
    fn an_advisory_is_a_failure_wherever_it_is_found() {
        for fetch in [DatabaseNeed::Optional, DatabaseNeed::Required] {
            assert_eq!(check(fetch, deny(true, true)), Ok(()));
            let error = check(fetch, deny(true, false)).unwrap_err();
            assert!(error.starts_with("advisories: cargo-deny found"), "{error}");
        }
    }

    #[test]
    fn a_database_that_cannot_be_fetched_fails_only_where_it_is_required() {
        // Without a database the check for advisories does not run.
        assert_eq!(check(DatabaseNeed::Optional, deny(false, false)), Ok(()));
        assert_eq!(check(DatabaseNeed::Required, deny(false, true)), Err(NOT_CHECKED.to_owned()));
    }
}
