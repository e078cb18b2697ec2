//! Installers in sessions whose rules share downloads, as the presets do: the second session gets the package from the
//! host, and the server of its files sees no further request.

use std::fs;
use std::path::Path;

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip_without_all;

use super::{ClientBench, RuledSites};
use crate::judges::{OutsideJudges, test_file};

/// An installer, the code that installs `covehello` with it, and the path of what it downloads.
type SharingInstaller = (&'static str, &'static str, &'static str);

const DEBIAN: &[SharingInstaller] = &[
    (
        "pip",
        "PIP_INDEX_URL={pypi}/simple pip install --quiet covehello\npython3 -c 'import covehello; print(covehello.greeting)'",
        "/files/covehello-1.0-py3-none-any.whl",
    ),
    (
        "npm",
        "npm_config_registry={npm} npm install --loglevel=error covehello > /dev/null\n\
         node -e 'console.log(require(\"covehello\").greeting)'",
        "/covehello/-/covehello-1.0.0.tgz",
    ),
];
const JUDGES: &[SharingInstaller] = &[
    (
        "uv",
        "UV_HTTP_RETRIES=0 UV_DEFAULT_INDEX={pypi}/simple /clients/bin/uv pip install --quiet covehello\n\
         python3 -c 'import covehello; print(covehello.greeting)'",
        "/files/covehello-1.0-py3-none-any.whl",
    ),
    (
        "cargo",
        "export RUSTC=/clients/bin/rustc CARGO_HOME=/tmp/cargo CARGO_NET_RETRY=0 CARGO_REGISTRIES_TEST_INDEX=sparse+{cargo}/index/\n\
         /clients/bin/cargo info --registry test covehello | grep -o '^covehello' | sed s/cove//",
        "/crates/covehello/1.0.0/download",
    ),
];

/// Writes rules for the sites that are those of the presets.
fn share_downloads(sites: &RuledSites) {
    let rule = |name: &str| {
        format!(
            "  {{ host = \"{name}.test\", ports = [{}], at = \"127.0.0.1\", methods = [\"GET\", \"HEAD\"], cache = true }},\n",
            sites.secure.port
        )
    };
    let rules = ["cargo", "npm", "pypi"].map(rule).concat();
    fs::write(&sites.config, format!("[egress]\nallow = [\n{rules}]\n")).unwrap();
}

fn install_twice(bench: &ClientBench, test: &str, installers: &[SharingInstaller]) {
    for who in TestUser::all(test) {
        for &(name, code, path) in installers {
            let sites = bench.start_sites();
            share_downloads(&sites);
            let code = ["pypi", "npm", "cargo"]
                .iter()
                .fold(code.to_owned(), |code, name| code.replace(&format!("{{{name}}}"), &sites.address(name)));
            for session in ["first", "second"] {
                let mut command = bench.command(who, &sites, "run");
                command.env("SSL_CERT_FILE", test_file("network/tls/authority.pem")).args(["-l", "bash", "-c", &code]);
                let finished = FinishedProgram::from_output(command.output().unwrap());
                assert!(
                    finished.code == Some(0) && finished.stdout.ends_with("hello\n"),
                    "{name} {who:?} {session} {finished:#?}"
                );
                assert_eq!(sites.secure.downloads(path), 1, "{name} {who:?} {session}");
            }
            assert!(sites.secure.count() > 1, "the index is asked each time");
        }
    }
}

#[test]
fn the_second_session_installs_from_the_host() {
    let test = "the_second_session_installs_from_the_host";
    if !["/usr/bin/pip3", "/usr/bin/npm"].iter().all(|program| Path::new(program).exists()) {
        return skip_without_all(test, "it installs pip and npm");
    }
    install_twice(&ClientBench::new(), test, DEBIAN);
}

#[test]
fn uv_and_cargo_share_downloads_too() {
    let test = "uv_and_cargo_share_downloads_too";
    let Some(judges) = OutsideJudges::find(test) else { return };
    install_twice(&ClientBench::with_judges(&judges), test, JUDGES);
}
