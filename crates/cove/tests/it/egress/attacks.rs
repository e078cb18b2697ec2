//! Attacks on network access in the embedded sandbox.

#[path = "../../egress_attacks/suite.rs"]
mod suite;

use cove_testkit::TestUser;

use crate::cove;

#[test]
fn attacks_on_network_access_fail_in_the_embedded_sandbox() {
    let test = "attacks_on_network_access_fail_in_the_embedded_sandbox";
    for who in TestUser::all(test) {
        let mut command = cove().command(who);
        command.args(["run", "--backend", "jail"]);
        suite::check_attacks(test, &format!("{who:?}"), command);
    }
}

#[test]
fn one_session_cannot_use_up_the_network_of_the_embedded_sandbox() {
    for who in TestUser::all("one_session_cannot_use_up_the_network_of_the_embedded_sandbox") {
        let mut command = cove().command(who);
        command.args(["serve", "--backend", "jail"]);
        suite::check_exhaustion(&format!("{who:?}"), command);
    }
}

#[test]
fn the_most_verbose_log_has_no_credential() {
    for who in TestUser::all("the_most_verbose_log_has_no_credential") {
        let mut command = cove().command(who);
        command.args(["serve", "--backend", "jail"]);
        suite::check_log(&format!("{who:?}"), command);
    }
}
