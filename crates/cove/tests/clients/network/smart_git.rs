//! git over its smart protocol, as forges speak it: reading and writing through a tunnel, and where Cove reads the requests
//! and adds the credential.

use std::fs;
use std::process::Command;

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;

use super::loopback_site::{PUSH_TOKEN, PUSHER};
use super::{ClientBench, RuledSites};

/// Clones, and then fetches when the server knows none of many own commits: git compresses so long a question.
const READ: &str = r"set -e
export HOME=/tmp GIT_TERMINAL_PROMPT=0
git clone --quiet --single-branch {git}/covehello.git work
cd work
cat greeting
for number in $(seq 10 70); do
    printf 'commit refs/heads/main\ncommitter tests <tests@example.invalid> 20000000%s +0000\ndata 2\nx\n' $number
    [ $number != 10 ] || echo 'from refs/heads/main^0'
done | git fast-import --quiet
git fetch --quiet origin other
git show FETCH_HEAD:greeting
";
/// Pushes a commit that git sends in chunks.
const WRITE: &str = r"
head -c 3000000 /dev/urandom > large
git add large
git -c user.name=tests -c user.email=tests@example.invalid commit --quiet -m large
git push --quiet origin HEAD:refs/heads/pushed-by-agent
echo pushed
";
const READ_PATHS: &str = r#"paths = ["/covehello.git/info/refs", "/covehello.git/git-upload-pack"]"#;
const QUESTION: &str = "POST /covehello.git/git-upload-pack compressed";

/// Writes a rule for git with these keys, and returns what a session with it does.
fn run_git(bench: &ClientBench, sites: &RuledSites, who: TestUser, keys: &str, code: &str) -> FinishedProgram {
    let rule = format!("{{ host = \"git.test\", ports = [{}], at = \"127.0.0.1\", {keys} }}", sites.secure.port);
    let credential = format!("[credentials.git]\nvalue = \"${{PUSH_TOKEN}}\"\nbasic = {{ user = \"{PUSHER}\" }}\n");
    let credential = if keys.contains("credential") { credential } else { String::new() };
    fs::write(&sites.config, format!("[egress]\nallow = [{rule}]\n{credential}")).unwrap();
    let mut command = bench.command(who, sites, "run");
    command.env("PUSH_TOKEN", PUSH_TOKEN).args(["-l", "bash", "-c", &code.replace("{git}", &sites.address("git"))]);
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert!(!format!("{finished:?}").contains(PUSH_TOKEN), "{finished:#?}");
    finished
}

/// Returns the branches that the server has got.
fn pushed_branches(bench: &ClientBench) -> String {
    let mut list = Command::new("git");
    list.args(["branch", "--list", "pushed*", "--format=%(refname:short)"])
        .env("GIT_DIR", bench.path("site/git/covehello.git"));
    String::from_utf8(list.output().unwrap().stdout).unwrap()
}

#[test]
fn git_reads_and_writes_where_the_rules_allow_it() {
    let trust = "export GIT_SSL_CAINFO=/clients/ca.pem\n";
    let write = format!("{READ}{WRITE}");
    for who in TestUser::all("git_reads_and_writes_where_the_rules_allow_it") {
        let bench = ClientBench::new();
        // Through a tunnel, the server decides.
        let sites = bench.start_sites();
        let finished = run_git(&bench, &sites, who, "", &format!("{trust}{write}"));
        assert_eq!(finished.stdout, "hello\nhello again\n", "{who:?} {finished:#?}");
        assert!(finished.code != Some(0) && finished.stderr.contains("403"), "{who:?} {finished:#?}");
        assert!(sites.secure.has_got(QUESTION), "{who:?}");

        let sites = bench.start_sites();
        let read = |methods: &str| format!("methods = {methods}, {READ_PATHS}, credential = \"git\"");
        let finished = run_git(&bench, &sites, who, &read("[\"GET\"]"), READ);
        let note = "network: refused POST https://git.test:";
        assert!(finished.stdout.is_empty() && finished.stderr.contains(note), "{who:?} {finished:#?}");
        assert!(finished.stderr.contains("(the rule allows GET"), "{who:?} {finished:#?}");

        let finished = run_git(&bench, &sites, who, &read("[\"GET\", \"POST\"]"), &write);
        assert_eq!(finished.stdout, "hello\nhello again\n", "{who:?} {finished:#?}");
        let note = format!("{note}{}/covehello.git/git-receive-pack", sites.secure.port);
        assert!(finished.code != Some(0) && finished.stderr.contains(&note), "{who:?} {finished:#?}");
        assert!(sites.secure.has_got(QUESTION), "{who:?}");
        assert_eq!(pushed_branches(&bench), "", "{who:?}");

        let keys = "methods = [\"GET\", \"POST\"], paths = [\"/covehello.git/**\"], credential = \"git\"";
        let finished = run_git(&bench, &sites, who, keys, &write);
        assert_eq!(finished.expect_success(), "hello\nhello again\npushed\n", "{who:?}");
        assert_eq!(pushed_branches(&bench), "pushed-by-agent\n", "{who:?}");
    }
}
