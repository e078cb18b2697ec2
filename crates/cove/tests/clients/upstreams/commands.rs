//! Commands for people that show servers: they print the same as agents see, and no secrets either.

use cove_testkit::program::FinishedProgram;

use super::UpstreamHome;
use super::secrets::assert_no_secrets;
use crate::judges::OutsideJudges;

impl UpstreamHome<'_> {
    /// Runs a Cove command to its end.
    fn run(&self, arguments: &[&str]) -> FinishedProgram {
        FinishedProgram::from_output(self.with_environment(arguments).output().expect("it can be started"))
    }
}

#[test]
fn refreshed_tools_are_found_without_starting_servers() {
    let Some(judges) = OutsideJudges::find("refreshed_tools_are_found_without_starting_servers") else {
        return;
    };
    let house = UpstreamHome::new(&judges);
    let refreshed = house.run(&["servers", "refresh"]);
    assert_eq!(refreshed.code, Some(0), "{refreshed:?}");
    assert_eq!(house.recorded_starts().len(), 8, "{:?}", house.recorded_starts());
    house.clear_starts();

    let found = house.run(&["tools", "find", "commit", "history"]);
    assert!(found.code == Some(0) && found.stdout.contains("git_log"), "{found:?}");
    let shown = house.run(&["tools", "show", "time.convert_time"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("target_timezone"), "{shown:?}");
    let listed = house.run(&["servers", "list"]);
    for word in ["sequential-thinking", "real.json", "fixture.json"] {
        assert!(listed.code == Some(0) && listed.stdout.contains(word), "{listed:?}");
    }
    let mut agent = house.serve(&[]);
    assert_eq!(agent.run_cell_file("discovery.py").ok().trim(), "discovered");
    agent.close();
    house.assert_nothing_started();

    let called = house.run(&["tools", "call", "fixture.add", "a=1", "b=2"]);
    assert!(called.code == Some(0) && called.stdout.contains("3.0"), "{called:?}");
    assert_eq!(house.recorded_starts(), ["fixture"]);
}

#[test]
fn commands_never_print_server_secrets() {
    let Some(judges) = OutsideJudges::find("commands_never_print_server_secrets") else { return };
    let house = UpstreamHome::empty(&judges);
    house.configure_secrets();
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
        assert_no_secrets(&format!("`cove {}`", arguments.join(" ")), &text);
    }
}
