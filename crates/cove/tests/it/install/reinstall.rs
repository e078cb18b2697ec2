//! Arguments of the server: they become absolute, and stay at the next install.

use super::*;

fn args(home: &InstallHome) -> Vec<String> {
    let args = home.json(".cursor/mcp.json")["mcpServers"]["cove"]["args"].clone();
    serde_json::from_value(args).unwrap()
}

#[test]
fn paths_in_arguments_become_absolute() {
    let home = InstallHome::new()
        .with("tree/usr/x", "")
        .with("data/x", "")
        .with("project/sub/x", "")
        .with("images/x", "")
        .with("project/c.toml", "");
    fs::create_dir_all(home.at("venv/bin")).unwrap();
    symlink("/usr/bin/python3", home.at("venv/bin/python")).unwrap();
    let at = |path: &str| home.at(path).canonicalize().unwrap().to_string_lossy().into_owned();
    let top = at("");
    let check = |given: &[&str], expected: &[String]| {
        let said = home.stdout_of(&[&["install", "cursor", "--"], given].concat());
        assert!(said.starts_with("added") || said.starts_with("updated"), "{given:?}: {said}");
        assert_eq!(args(&home)[1..], *expected, "{given:?}");
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    check(&["--python", "../venv/bin/python"], &words(&["--python", &format!("{top}/venv/bin/python")]));
    check(&["--python=~/venv"], &words(&[&format!("--python={top}/venv")]));
    check(
        &["--mount", "./sub:/a", "--mount=~/data:/b:rw"],
        &words(&["--mount", &format!("{top}/project/sub:/a"), &format!("--mount={top}/data:/b:rw")]),
    );
    check(
        &["--image-dir", "../images", "--state-dir", "st"],
        &words(&["--image-dir", &format!("{top}/images"), "--state-dir", &format!("{top}/project/st")]),
    );
    check(
        &["--workspace", "sub", "--allow-mount", "/usr", "--allow-mount", "sub:rw"],
        &words(&[
            "--workspace",
            &format!("{top}/project/sub"),
            "--allow-mount",
            "/usr",
            "--allow-mount",
            &format!("{top}/project/sub:rw"),
        ]),
    );
    check(
        &["--config", "./c.toml", "--memory", "1g"],
        &words(&["--config", &format!("{top}/project/c.toml"), "--memory", "1g"]),
    );
    // Not a path, although it looks like one.
    check(
        &["--rootfs", "../tree", "--token-file=t"],
        &words(&["--rootfs", &format!("{top}/tree"), &format!("--token-file={top}/project/t")]),
    );
    check(&["--allow-origin", "http://a.example"], &words(&["--allow-origin", "http://a.example"]));
    let refused = home.refusal_of(2, &["install", "cursor", "--", "--mount", "~/nothing:/a"]);
    assert!(refused.contains("does not exist"), "{refused}");
}

#[test]
fn a_python_on_the_search_path_becomes_a_path() {
    let home = InstallHome::new();
    symlink("/usr/bin/python3", home.at("bin/python3")).unwrap();
    home.stdout_of(&["install", "cursor", "--", "--python", "python3"]);
    assert_eq!(args(&home)[2], home.at("bin/python3").to_string_lossy());
}

#[test]
fn a_second_install_keeps_the_arguments() {
    let home = InstallHome::new();
    home.stdout_of(&["install", "cursor", "--", "--memory", "1g"]);
    assert_snapshot!(home.stdout_of(&["install", "cursor"]), @"
    `cove` is already in [HOME]/.cursor/mcp.json; nothing was changed
    kept `--memory 1g` of the earlier entry; `--reset` drops it
    ");
    assert_eq!(args(&home), ["serve", "--memory", "1g"]);
    // The program moved, and the arguments stay.
    let moved = home.text(".cursor/mcp.json").replace(&*cove().path().to_string_lossy(), "/old/cove");
    fs::write(home.at(".cursor/mcp.json"), moved).unwrap();
    let said = home.stdout_of(&["install", "cursor"]);
    assert!(said.starts_with("updated `cove`") && said.contains("\nkept `--memory 1g` of "), "{said}");
    assert_eq!(args(&home), ["serve", "--memory", "1g"]);
    assert!(home.stdout_of(&["install", "cursor", "--reset"]).starts_with("updated `cove`"));
    assert_eq!(args(&home), ["serve"]);
    home.stdout_of(&["install", "cursor", "--", "--memory", "2g"]);
    assert_eq!(args(&home), ["serve", "--memory", "2g"]);
    home.stdout_of(&["install", "cursor", "--"]);
    assert_eq!(args(&home), ["serve"]);
    // opencode has the command and its arguments in one list, Goose calls it `cmd`.
    for id in ["opencode", "goose", "codex"] {
        home.stdout_of(&["install", id, "--", "--memory", "1g"]);
        assert!(home.stdout_of(&["install", id]).contains("\nkept `--memory 1g` of "), "{id}");
    }
}

#[test]
fn arguments_that_no_longer_work_are_not_kept() {
    let entry = "{\"mcpServers\": {\"cove\": {\"command\": \"cove\", \"args\": [\"serve\", \"--memory\", \"lots\"]}}}";
    let home = InstallHome::new().with(".cursor/mcp.json", entry);
    let said = home.refusal_of(2, &["install", "cursor"]);
    assert!(said.starts_with("could not read `--memory lots`") && said.contains("`--reset`"), "{said}");
    assert_eq!(home.text(".cursor/mcp.json"), entry);
    home.stdout_of(&["install", "cursor", "--reset"]);
    assert_eq!(args(&home), ["serve"]);
}
