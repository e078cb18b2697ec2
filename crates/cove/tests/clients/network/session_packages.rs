//! Packages that code installs for its session, from an index and a registry that the rules name.

use std::fs;
use std::path::Path;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip_without_all;
use serde_json::json;

use super::{ClientBench, RuledSites, open_to_all};
use crate::cove;

/// True unless the installers are missing, which is reported.
fn has_installers(test: &str) -> bool {
    let has_all = ["/usr/bin/pip3", "/usr/bin/npm"].iter().all(|program| Path::new(program).exists());
    if !has_all {
        skip_without_all(test, "it installs pip and npm");
    }
    has_all
}

/// Variables that make installers use the test's index and registry.
fn installer_variables(sites: &RuledSites) -> String {
    format!(
        "PIP_INDEX_URL={}/simple PIP_CERT=/clients/ca.pem npm_config_registry={} npm_config_cafile=/clients/ca.pem",
        sites.address("pypi"),
        sites.address("npm")
    )
}

#[test]
fn packages_that_code_installs_are_there_in_its_next_cell() {
    let test = "packages_that_code_installs_are_there_in_its_next_cell";
    if !has_installers(test) {
        return;
    }
    let bench = ClientBench::new();
    for who in TestUser::all(test) {
        let sites = bench.start_sites();
        let variables = installer_variables(&sites);
        // As agents do it beside `pip install`, which the table of clients has.
        let install = format!(
            "import os, subprocess, sys\nos.environ.update(word.split('=', 1) for word in '{variables}'.split())\n\
             subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', 'covehello'], check=True);"
        );
        let python = [
            "try:\n    import covehello\nexcept ImportError:\n    print('not yet')",
            &install,
            "import covehello",
            "print(covehello.greeting, covehello.__file__.count('/workspace/.venv/lib/python3.'))",
            "print(subprocess.check_output(['python3', '-c', 'import covehello; print(covehello.greeting)'], text=True))",
            "print(os.listdir('.'))",
        ];
        let finished = bench.run_cells(who, &sites, "python", &python);
        assert_eq!(finished.expect_success(), "not yet\nhello 1\nhello\n\n['.venv']\n", "{who:?}");
        let install = format!("require('child_process').execSync('env {variables} npm install covehello');");
        let node =
            [&install, "console.log(require('covehello').greeting)", "console.log(require.resolve('covehello'))"];
        let finished = bench.run_cells(who, &sites, "node", &node);
        let printed = finished.expect_success();
        assert!(printed.ends_with("hello\n/workspace/node_modules/covehello/main.js\n"), "{who:?} {printed}");
        assert_eq!(sites.forbidden.count(), 0);
    }
}

/// Code may make an environment of its own, as the instructions of many projects say.
#[test]
fn environments_that_code_makes_get_their_own_packages() {
    let test = "environments_that_code_makes_get_their_own_packages";
    if !has_installers(test) {
        return;
    }
    let bench = ClientBench::new();
    for who in TestUser::all(test) {
        let sites = bench.start_sites();
        let code = format!(
            "export {}\n\
             python3 -m venv --system-site-packages --without-pip own && . own/bin/activate\n\
             python -m pip install --quiet covehello\n\
             python -c 'import covehello; print(covehello.__file__)' | cut -d/ -f1-3",
            installer_variables(&sites)
        );
        let finished = bench.run(who, &sites, "bash", &code);
        assert_eq!(finished.expect_success(), "/workspace/own\n", "{who:?}");
    }
}

#[test]
fn an_index_without_a_rule_is_refused_by_name() {
    let test = "an_index_without_a_rule_is_refused_by_name";
    if !has_installers(test) {
        return;
    }
    let (bench, who) = (ClientBench::new(), TestUser::all(test)[0]);
    let sites = bench.start_sites();
    let index = format!("https://forbidden.test:{}", sites.forbidden.port);
    for code in [
        format!("PIP_INDEX_URL={index}/simple PIP_CERT=/clients/ca.pem pip install covehello"),
        format!("npm_config_cafile=/clients/ca.pem npm_config_registry={index} npm install covehello"),
    ] {
        let finished = bench.run(who, &sites, "bash", &code);
        assert!(
            finished.code == Some(1) && finished.stderr.contains("network: refused forbidden.test:"),
            "{finished:#?}"
        );
        assert!(!finished.stderr.contains("no packages can be installed"), "{finished:#?}");
    }
    assert_eq!(sites.forbidden.count(), 0);
    let hint = |language, code| bench.run(who, &sites, language, code).stderr;
    assert!(hint("python", "import no_such_thing").ends_with("allow it: `pip install no_such_thing`\n"));
    assert!(hint("node", "require('no-such-thing')").ends_with("allow it: `npm install no-such-thing`\n"));
}

/// The environment belongs to the code: whatever it does with it, Python starts, and the packages of the operator stay.
#[test]
fn code_that_breaks_its_environment_still_has_a_python() {
    let test = "code_that_breaks_its_environment_still_has_a_python";
    let bench = ClientBench::new();
    for who in TestUser::all(test) {
        let sites = bench.start_sites();
        let attempts = [
            "rm -rf .venv",
            "rm .venv/bin/python3; printf '#!/bin/sh\\nexit 7\\n' > .venv/bin/python3; chmod +x .venv/bin/python3",
            "rm .venv/bin/python3; ln -s /bin/false .venv/bin/python3",
            "rm .venv/pyvenv.cfg",
            "rm -rf .venv/bin; ln -s /proc/self/exe .venv/bin",
            "rm -rf .venv; ln -s /usr .venv",
        ];
        for breaks in attempts {
            let mut client = TestStdioClient::start(bench.command(who, &sites, "serve"), ClientEra::Legacy);
            // The session's first Python may run already, so a second one is started.
            for (language, code, expected) in [
                ("bash", breaks, Some("")),
                ("python", "import os\nos._exit(0)", None),
                ("python", "print('again')", Some("again\n")),
            ] {
                let answer = client.call("execute_code", json!({"code": code, "language": language}));
                assert!(expected.is_none_or(|expected| answer.text().ends_with(expected)), "{breaks}: {answer:?}");
            }
        }
    }
}

#[test]
fn packages_of_the_operator_do_not_lead_npm_astray() {
    let test = "packages_of_the_operator_do_not_lead_npm_astray";
    if !has_installers(test) {
        return;
    }
    let (bench, who) = (ClientBench::new(), TestUser::all(test)[0]);
    fs::create_dir(bench.path("layer")).unwrap();
    let sites = bench.start_sites();
    let npm = format!("export {}\n", installer_variables(&sites));
    let mut command = bench.command(who, &sites, "run");
    command.args(["--mount", &format!("{}:/node_modules", bench.path("layer").display())]);
    command.args(["-l", "bash", "-c", &format!("{npm}npm install covehello > /dev/null && ls node_modules")]);
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert_eq!(finished.expect_success(), "covehello\n");
}

#[test]
fn sessions_without_rules_have_nothing_for_installers() {
    for who in TestUser::all("sessions_without_rules_have_nothing_for_installers") {
        let code = "import os, sys\nprint(os.listdir('.'), sys.prefix == sys.base_prefix)\n\
                    print([name for name in os.environ if name == 'COVE_NETWORK' or name.startswith(('PIP_', 'npm_'))])";
        let finished = cove().run(who, &["run", "--backend", "jail", "-c", code]);
        assert_eq!(finished.expect_success(), "[] True\n['PIP_RETRIES', 'npm_config_fetch_retries']\n");
    }
}

#[test]
fn installed_packages_are_not_among_the_files_that_are_kept() {
    let who = TestUser::all("installed_packages_are_not_among_the_files_that_are_kept")[0];
    let (bench, out) = (ClientBench::new(), tempfile::tempdir().unwrap());
    open_to_all(out.path(), 0o777);
    let sites = bench.start_sites();
    let mut command = bench.command(who, &sites, "run");
    command.args(["--out", out.path().to_str().unwrap()]);
    command.args(["-c", "import os; os.mkdir('node_modules'); open('node_modules/a', 'w'); open('result', 'w');"]);
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    let kept: Vec<_> = fs::read_dir(out.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(kept, ["result"]);
}
