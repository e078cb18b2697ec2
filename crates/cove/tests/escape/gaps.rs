//! The gaps of the cases, compared with those that `cove doctor` names and with the tables of `docs/security.md`.

use std::collections::BTreeSet;

use cove_docker::{ENFORCEMENT_GAPS, EnforcementGap, Engine, GapScope};

use crate::CASES;
use crate::case::AttackCase;

const SECURITY_PAGE: &str = include_str!("../../../../docs/security.md");

/// The environments of cases, each with its heading in the table, and the gaps that it had before the hardening: in all
/// cases of that time, and how many attempts in the same cases are gaps now. Compose and rootless Podman were not attacked then.
const ENVIRONMENTS: [(&str, &str, Option<usize>); 6] = [
    ("root", "embedded sandbox, root", Some(0)),
    ("user", "embedded sandbox, ordinary user", Some(1)),
    ("docker", "Docker", Some(16)),
    ("podman", "Podman", Some(13)),
    ("rootless", "an ordinary user's Podman, beside those of Podman", None),
    ("compose", "Compose, beside those of Docker", None),
];

/// The cases that came with the hardening or after it.
const LATER_CASES: [&str; 22] = [
    "A19-cached-pages",
    "A47-closed-sockets",
    "A47-ended-leader",
    "A47-epoll-watches",
    "A47-hidden-sockets",
    "A47-odd-name",
    "A47-pipes",
    "A47-tcp-buffers",
    "A47-unmapped-pages",
    "K01-page-tables",
    "K02-landlock-rules",
    "K02-semaphores",
    "K04-inotify",
    "K05-user-counts",
    "K07-leases",
    "K08-copies-on-write",
    "K08-many-mappings",
    "K10-socket-filters",
    "K11-core-limit",
    "K22-set-id-bits",
    "K24-file-locks",
    "K24-locks-of-threads",
];

fn cases_with_gaps(environment: &str) -> BTreeSet<&'static str> {
    CASES.iter().copied().filter(|name| AttackCase::load(name).gaps_named(environment) > 0).collect()
}

fn cases_of_gaps(is_meant: impl Fn(&EnforcementGap) -> bool) -> BTreeSet<&'static str> {
    ENFORCEMENT_GAPS.iter().filter(|gap| is_meant(gap)).flat_map(|gap| gap.cases.iter().copied()).collect()
}

#[test]
fn every_gap_of_a_case_is_named_by_doctor() {
    for (environment, engine) in [("docker", Engine::Docker), ("podman", Engine::Podman)] {
        let named = cases_of_gaps(|gap| gap.scope == GapScope::EveryContainer && gap.engines.contains(&engine));
        assert_eq!(named, cases_with_gaps(environment), "{environment}");
    }
    let named = cases_of_gaps(|gap| gap.scope == GapScope::ComposeProject);
    assert_eq!(named, cases_with_gaps("compose"));
    // Nothing has been left open where Cove makes the sandbox itself.
    for environment in ["root", "user", "rootless"] {
        assert_eq!(cases_with_gaps(environment), BTreeSet::new(), "{environment}");
    }
}

#[test]
fn the_security_page_lists_every_gap() {
    let rows: Vec<String> = ENFORCEMENT_GAPS.iter().map(row).collect();
    let missing: Vec<&String> = rows.iter().filter(|row| !SECURITY_PAGE.contains(*row)).collect();
    assert!(missing.is_empty(), "not in docs/security.md:\n{missing:#?}");
}

fn row(gap: &EnforcementGap) -> String {
    let engines = match gap.engines {
        [Engine::Docker] => "Docker",
        [Engine::Podman] => "Podman",
        _ => "both",
    };
    let cases: Vec<String> = gap.cases.iter().map(|case| format!("[test: {case}]")).collect();
    format!("| {} | {engines} | {} | {} |", gap.text, gap.fix, cases.join(" ")).replace("|  |", "| |")
}

#[test]
fn the_security_page_counts_the_gaps() {
    for (environment, heading, before) in ENVIRONMENTS {
        let count = |is_meant: fn(&str) -> bool| -> usize {
            let meant = CASES.iter().filter(|name| is_meant(name));
            meant.map(|name| AttackCase::load(name).gaps_named(environment)).sum()
        };
        let before = before.map_or("not attacked".to_owned(), |count| count.to_string());
        let (same, all) = (count(|name| !LATER_CASES.contains(&name)), count(|_| true));
        let wanted = format!("| {heading} | {before} | {same} | {all} |");
        assert!(SECURITY_PAGE.contains(&wanted), "not in docs/security.md: {wanted}");
    }
    let heading = format!("| before, {} cases | now, the same cases | now, {} cases |", CASES.len() - 22, CASES.len());
    assert!(SECURITY_PAGE.contains(&heading), "not in docs/security.md: {heading}");
}
