//! The files of a release: the tarball, the checksums, the list of components and the notice.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use cove_testkit::skip::skip;
use serde_json::Value;

use crate::cargo::without_cargo_variables;
use crate::install_home::{InstallHome, succeed};

#[test]
fn packing_twice_gives_the_same_files() {
    let Some(home) = InstallHome::new("packing_twice_gives_the_same_files") else { return };
    let sums = |half: &str| fs::read_to_string(home.packages(half).join("SHA256SUMS")).unwrap();
    assert_eq!(sums("first"), sums("second"));
    assert_eq!(sums("first").lines().count(), 6, "{}", sums("first"));
    for half in ["first", "second"] {
        succeed(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(home.packages(half)));
    }
}

#[test]
fn tarball_runs_where_it_is_unpacked() {
    let Some(home) = InstallHome::new("tarball_runs_where_it_is_unpacked") else { return };
    let tarball = home.take_package("-linux.tar.xz");
    let before = home.paths(".");
    home.run("mkdir", &["opt"]);
    home.run("tar", &["-xJf", tarball.to_str().unwrap(), "-C", "opt", "--strip-components=1"]);
    home.check_cove(home.at("opt/bin/cove"));
    // It needs no library of the system.
    let program = home.at("opt/bin/cove");
    let headers = succeed(Command::new("readelf").args(["--program-headers", "--dynamic"]).arg(program));
    assert!(!headers.contains("INTERP") && !headers.contains("NEEDED"), "{headers}");

    let page = fs::read_to_string(home.at("opt/share/man/man1/cove-run.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS") && page.contains("cove run script.py"), "{page}");
    assert!(!page.contains('\u{1b}'), "{page}");
    let bash = home.at("opt/share/bash-completion/completions/cove");
    let script = format!("source {}; complete -p cove", bash.display());
    assert!(home.run("bash", &["-c", &script]).contains("cove"));
    for (path, word) in [
        ("opt/share/zsh/site-functions/_cove", "#compdef cove"),
        ("opt/share/fish/vendor_completions.d/cove.fish", "--command cove"),
        ("opt/NOTICE", "Apache License"),
        ("opt/LICENSE", "MIT License"),
        ("opt/README.md", "# Cove"),
    ] {
        let text = fs::read_to_string(home.at(path)).unwrap();
        assert!(text.contains(word), "{path}");
        let folder = home.packages("first");
        assert!(!text.contains(folder.to_str().unwrap()), "{path} names a folder of the builder");
    }
    home.run("rm", &["-r", "opt"]);
    assert_eq!(home.paths("."), before);
}

#[test]
fn component_list_names_every_linked_package() {
    let Some(home) = InstallHome::new("component_list_names_every_linked_package") else { return };
    let text = fs::read_to_string(home.take_package(".cdx.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&document["bomFormat"], &document["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = document["components"].as_array().unwrap();
    let references: BTreeSet<&str> = components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
    assert_eq!(references.len(), components.len(), "each has a reference of its own");
    for name in ["cove-jail", "tokio", "ring", "rustls", "serde_json"] {
        assert!(components.iter().any(|one| one["name"] == name), "{name}");
    }
    for name in ["insta", "syn", "xtask", "cove-testkit"] {
        assert!(components.iter().all(|one| one["name"] != name), "{name} is not linked");
    }
    let foreign = components.iter().filter(|one| !one["name"].as_str().unwrap().starts_with("cove-"));
    for component in foreign {
        assert!(component["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64), "{component}");
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
    let own = document["metadata"]["component"]["bom-ref"].as_str().unwrap();
    for dependency in document["dependencies"].as_array().unwrap() {
        let on = dependency["dependsOn"].as_array().unwrap().iter().chain([&dependency["ref"]]);
        for reference in on.map(|one| one.as_str().unwrap()) {
            assert!(reference == own || references.contains(reference), "{reference}");
        }
    }
}

/// The published program and everything around it do not depend on where they are built.
#[test]
fn a_build_in_another_folder_is_the_same() {
    let test = "a_build_in_another_folder_is_the_same";
    let Some(home) = InstallHome::new(test) else { return };
    if std::env::var_os("COVE_TEST_FULL").is_none() {
        skip(test, "not on this machine: only `cargo xtask test --full` builds the release twice");
        return;
    }
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let sums = ["one", "another-folder"].map(|name| {
        let folder = home.at(name);
        fs::create_dir(&folder).unwrap();
        let copy = "git -C \"$0\" ls-files -z | tar -C \"$0\" --null -T - -c | tar -x -C \"$1\"";
        succeed(Command::new("sh").args(["-c", copy]).arg(&clone).arg(&folder));
        let mut dist = Command::new(env!("CARGO"));
        dist.args(["xtask", "dist", "--out"]).arg(folder.join("packages")).current_dir(&folder);
        dist.env("SOURCE_DATE_EPOCH", "1700000000").env("COVE_COMMIT", "0123456789ab").env_remove("CARGO_TARGET_DIR");
        without_cargo_variables(&mut dist);
        succeed(&mut dist);
        fs::read_to_string(folder.join("packages/SHA256SUMS")).unwrap()
    });
    assert_eq!(sums[0], sums[1]);
}
