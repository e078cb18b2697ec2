//! What a person's own commands say of servers: the same as agents see, and no secrets either.

use cove_testkit::program::Finished;

use super::House;
use super::canary::clean;
use crate::judges::Judges;

impl House<'_> {
    /// Runs a command of Cove's to its end.
    fn run(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.with_environment(arguments).output().expect("it can be started"))
    }
}

#[test]
fn what_was_refreshed_is_found_while_nothing_runs() {
    let Some(judges) = Judges::find("what_was_refreshed_is_found_while_nothing_runs") else { return };
    let house = House::new(&judges);
    let refreshed = house.run(&["servers", "refresh"]);
    assert_eq!(refreshed.code, Some(0), "{refreshed:?}");
    assert_eq!(house.started().len(), 8, "{:?}", house.started());
    house.forget();

    let found = house.run(&["tools", "find", "commit", "history"]);
    assert!(found.code == Some(0) && found.stdout.contains("git_log"), "{found:?}");
    let shown = house.run(&["tools", "show", "time.convert_time"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("target_timezone"), "{shown:?}");
    let listed = house.run(&["servers", "list"]);
    for word in ["sequential-thinking", "real.json", "fixture.json"] {
        assert!(listed.code == Some(0) && listed.stdout.contains(word), "{listed:?}");
    }
    let mut agent = house.serve(&[]);
    assert_eq!(agent.cell("discovery.py").ok().trim(), "discovered");
    agent.leave();
    house.is_idle();

    let called = house.run(&["tools", "call", "fixture.add", "a=1", "b=2"]);
    assert!(called.code == Some(0) && called.stdout.contains("3.0"), "{called:?}");
    assert_eq!(house.started(), ["fixture"]);
}

#[test]
fn commands_show_no_secrets_of_servers() {
    let Some(judges) = Judges::find("commands_show_no_secrets_of_servers") else { return };
    let house = House::empty(&judges);
    house.with_secrets();
    for arguments in [
        &["servers", "list"][..],
        &["servers", "list", "--json"],
        &["servers", "refresh"],
        &["tools", "find", "variable"],
        &["tools", "show", "works.variable"],
        &["tools", "call", "dies.anything"],
        &["audit"],
        &["config", "show"],
    ] {
        let ended = house.run(arguments);
        let text = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!text.is_empty() && !text.contains("unrecognized"), "{arguments:?}: {ended:?}");
        clean(&format!("`cove {}`", arguments.join(" ")), &text);
    }
}
