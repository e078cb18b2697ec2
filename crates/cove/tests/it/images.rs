//! Images through the real program: listed, exported, edited while a server runs, and refused with the reason.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::{Value, json};

use crate::cove;

/// A directory that every user can write to.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    directory
}

fn write(directory: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn list(args: &[&str]) -> Value {
    let args = [&["images", "list", "--json"], args].concat();
    serde_json::from_str(&cove().run(TestUser::Root, &args).expect_success()).unwrap()
}

fn images_and_backends(listed: &Value) -> Vec<(&str, &str)> {
    let images = listed["images"].as_array().unwrap().iter();
    images.map(|image| (image["name"].as_str().unwrap(), image["backend"].as_str().unwrap())).collect()
}

#[test]
fn lists_built_in_images_with_their_backend() {
    for who in TestUser::all("lists_built_in_images_with_their_backend") {
        let text = cove().run(who, &["images", "list"]).expect_success();
        let first: Vec<&str> = text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(first, ["python", "node", "ubuntu"], "{who:?}: {text}");
        assert!(text.lines().all(|line| line.contains("embedded sandbox")), "{who:?}: {text}");
        assert!(text.contains("oneshot     python"), "{who:?}: {text}");
    }
    let containers = list(&["--backend", "docker"]);
    assert_eq!(
        images_and_backends(&containers),
        [("python", "container"), ("node", "container"), ("ubuntu", "container")]
    );
    let runtime = list(&["--runtime", "runsc"]);
    assert_eq!(images_and_backends(&runtime), images_and_backends(&containers), "only containers have runtimes");
}

#[test]
fn explains_every_built_in_image() {
    for who in TestUser::all("explains_every_built_in_image") {
        for image in ["python", "node", "ubuntu"] {
            let args = ["explain", "--image", image, "--memory", "128m"];
            let text = cove().run(who, &args).expect_success();
            assert!(text.starts_with("backend     jail, since it is built in and unchanged\n"), "{text}");
            assert!(text.contains("128 MiB memory"), "{who:?} {image}: {text}");
            let json = cove().run(who, &[&args[..], &["--json"]].concat()).expect_success();
            let plan: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(plan["identity"]["inside"]["uid"], 65534, "{who:?} {image}: {json}");
        }
        let unknown = cove().run(who, &["explain", "--image", "pyhton"]);
        assert_eq!(unknown.code, Some(2), "{unknown:#?}");
        assert!(unknown.stderr.contains("did you mean `python`?"), "{unknown:#?}");
        // `cove explain` shows a oneshot image; `cove run` refuses it.
        let run = cove().run(who, &["run", "--image", "python", "-c", "1"]);
        assert_eq!(run.code, Some(2), "{run:#?}");
        assert!(run.stderr.contains("a new container for each call"), "{run:#?}");
    }
}

#[test]
fn edited_images_need_a_container_and_exported_do_not() {
    for (who, command) in TestUser::all("edited_images_need_a_container_and_exported_do_not")
        .into_iter()
        .flat_map(|who| [(who, &["images", "export"][..]), (who, &["--export-images"])])
    {
        let directory = open_directory();
        let target = directory.path().join("images");
        let target_text = target.to_str().unwrap();
        let args = [command, &[target_text]].concat();
        let said = cove().run(who, &args).expect_success();
        assert_eq!(
            said,
            format!("wrote python, node, ubuntu to `{target_text}`; use them with `--image-dir {target_text}`\n")
        );
        let again = cove().run(who, &args).expect_success();
        assert!(again.starts_with("nothing to write"), "{again}");
        let all = [("node", "embedded sandbox"), ("python", "embedded sandbox"), ("ubuntu", "embedded sandbox")];
        assert_eq!(images_and_backends(&list(&["--image-dir", target_text])), all, "{who:?}");

        write(&target, &[("python/Dockerfile", "FROM python:3.12-slim\nCMD [\"python3\", \"-\"]\n")]);
        assert_eq!(images_and_backends(&list(&["--image-dir", target_text]))[1], ("python", "container"));
        let refused = cove().run(who, &args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("python/Dockerfile` is there already, and differs"), "{refused:?}");
        let jail = list(&["--image-dir", target_text, "--backend", "jail"]);
        assert_eq!(jail["problems"][0]["name"], "python", "{jail}");
        assert!(
            jail["problems"][0]["problem"].as_str().unwrap().contains("differs from the one that is built in"),
            "{jail}"
        );
    }
    let both = cove().run(TestUser::Root, &["--export-images", "/tmp/x", "run", "-c", "1"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

#[test]
fn reports_an_unwritable_export_directory() {
    let whole = TestUser::all("reports_an_unwritable_export_directory");
    for who in whole.into_iter().filter(|who| *who == TestUser::Ordinary) {
        let closed = tempfile::tempdir().unwrap();
        let target = closed.path().join("images");
        fs::set_permissions(closed.path(), Permissions::from_mode(0o000)).unwrap();
        let refused = cove().run(who, &["images", "export", target.to_str().unwrap()]);
        assert_eq!(refused.code, Some(125), "{refused:?}");
        assert!(refused.stderr.contains("caused by: Permission denied"), "{refused:?}");
        assert!(refused.stderr.contains("hint: name a directory that you may write to"), "{refused:?}");
    }
}

#[test]
fn broken_images_are_reported_and_the_rest_works() {
    let directory = open_directory();
    write(
        directory.path(),
        &[
            ("README.md", "these are mine"),
            ("tools/Dockerfile", "FROM debian:12\n"),
            ("tools/image.toml", "description = \"mine\"\noneshot = false\n[limits]\nmemory = \"1g\"\n"),
            ("typo/Dockerfile", "FROM debian:12\n"),
            ("typo/image.toml", "descripton = \"x\"\n"),
            ("Upper/Dockerfile", "FROM debian:12\n"),
            ("empty/notes", ""),
        ],
    );
    std::os::unix::fs::symlink("/etc", directory.path().join("outside")).unwrap();
    let dir = directory.path().to_str().unwrap();
    let text = cove().run(TestUser::Root, &["images", "list", "--image-dir", dir]).expect_success();
    assert!(text.starts_with("tools  persistent  -  container  mine ("), "{text}");
    assert!(text.contains(", memory 1g)\n\nproblems:\nUpper: "), "{text}");
    assert!(text.contains("typo: could not read `descripton` in `typo/image.toml`, line 1: it is not a key of `image.toml`\n  hint: did you mean `description`?\n"), "{text}");

    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--tools", "sessions", "--image-dir", dir]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let listed = client.call("list_images", json!({}));
    assert_eq!(images_and_backends(listed.structured()), [("tools", "container")]);
    assert_eq!(listed.structured()["images"][0]["limits"], json!({"memory": 1 << 30}));
    let names: Vec<&Value> =
        listed.structured()["problems"].as_array().unwrap().iter().map(|problem| &problem["name"]).collect();
    assert_eq!(names, ["Upper", "empty", "outside", "typo"]);
    let words = listed.ok();
    assert!(
        words.starts_with(
            "tools (persistent; container, since it is not built in; memory 1g): mine\nproblems, for the operator:\n"
        ),
        "{words}"
    );
    let text = client.call("start_session", json!({"image": "typo"})).failed();
    assert!(text.contains("could not use the image `typo`") && text.contains("did you mean `description`?"), "{text}");

    // Corrected while the server runs.
    write(directory.path(), &[("typo/image.toml", "description = \"x\"\n")]);
    let listed = client.call("list_images", json!({}));
    assert_eq!(images_and_backends(listed.structured()), [("tools", "container"), ("typo", "container")]);
}

/// Without Docker, Podman and Compose: listing already finds what is wrong with such a file.
#[test]
fn lists_name_compose_files_that_are_refused() {
    let directory = open_directory();
    write(
        directory.path(),
        &[
            ("good/compose.yaml", "services: {web: {image: nginx}}\n"),
            ("broken/compose.yaml", "services: {web: {image: nginx}\n"),
            ("root/compose.yaml", "services: {web: {image: nginx, privileged: true}}\n"),
            (
                "socket/compose.yaml",
                "services: {web: {image: nginx, volumes: ['/var/run/docker.sock:/x', './${A}:/y']}}\n",
            ),
        ],
    );
    let dir = directory.path().to_str().unwrap();
    let text = cove().run(TestUser::Root, &["images", "list", "--image-dir", dir]).expect_success();
    assert!(text.starts_with("good  persistent"), "{text}");
    assert!(text.contains("broken: could not use `broken/compose.yaml`: "), "{text}");
    let refused = "root: could not use `root/compose.yaml`: `services.web.privileged` is refused: it is as good as \
                   root on this machine\n  hint: remove it; the operator can allow it with `--allow-compose \
                   privileged`\n";
    assert!(text.contains(refused), "{text}");
    let socket = "socket: could not use `socket/compose.yaml`: `services.web.volumes` shows `/var/run/docker.sock`, \
                  which is by its name the socket of a container engine\n  hint: remove it; nothing allows it\n";
    assert!(text.contains(socket), "{text}");
    let allowed = list(&["--image-dir", dir, "--allow-compose", "privileged"]);
    assert_eq!(images_and_backends(&allowed), [("good", "container"), ("root", "container")]);

    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--tools", "sessions", "--image-dir", dir]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let listed = client.call("list_images", json!({}));
    assert_eq!(images_and_backends(listed.structured()), [("good", "container")]);
    let names: Vec<&Value> =
        listed.structured()["problems"].as_array().unwrap().iter().map(|problem| &problem["name"]).collect();
    assert_eq!(names, ["broken", "root", "socket"]);
    let text = client.call("start_session", json!({"image": "root"})).failed();
    assert!(text.contains("could not use the image `root`") && text.contains("--allow-compose"), "{text}");
    write(directory.path(), &[("root/compose.yaml", "services: {web: {image: nginx}}\n")]);
    let listed = client.call("list_images", json!({}));
    assert_eq!(images_and_backends(listed.structured()), [("good", "container"), ("root", "container")]);

    let built = cove().run(TestUser::Root, &["images", "build", "broken", "--image-dir", dir]);
    assert_eq!((built.code, built.stdout.as_str()), (Some(1), ""), "{built:?}");
    assert!(built.stderr.starts_with("could not use `broken/compose.yaml`: "), "{built:?}");
}

#[test]
fn missing_image_directory_is_an_error() {
    for json in [&[][..], &["--json"]] {
        let args = [&["images", "list", "--image-dir", "/nonexistent/images"], json].concat();
        let finished = cove().run(TestUser::Root, &args);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:?}");
        assert!(finished.stderr.starts_with("could not list the images\ncaused by: could not read"), "{finished:?}");
        assert!(finished.stderr.contains("hint: set `--image-dir`"), "{finished:?}");
    }
    // An empty directory is valid, and one with nothing but problems lists them.
    let directory = open_directory();
    let dir = directory.path().to_str().unwrap();
    assert_eq!(images_and_backends(&list(&["--image-dir", dir])), []);
    write(directory.path(), &[("x/image.toml", "image = \"Ubuntu:24.04\"\n")]);
    let listed = list(&["--image-dir", dir]);
    assert!(listed["problems"][0]["problem"].as_str().unwrap().contains("cannot have capital letters"), "{listed}");
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = cove().run(TestUser::Root, &["--export-images", file.to_str().unwrap()]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("and is not a directory"), "{refused:?}");
}

/// Only builds whose definition is known to be gone are removed.
#[test]
fn prunes_nothing_if_images_cannot_be_read() {
    let finished = cove().run(TestUser::Root, &["images", "prune", "--image-dir", "/nonexistent/images"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.starts_with("could not tell which images are defined\n"), "{finished:?}");
}

#[test]
fn default_sessions_use_the_embedded_sandbox() {
    let directory = open_directory();
    write(directory.path(), &[("tools/Dockerfile", "FROM debian:12\n"), ("tools/image.toml", "oneshot = false\n")]);
    write(directory.path(), &[("once/Dockerfile", "FROM debian:12\n")]);
    let dir = directory.path().to_str().unwrap();
    for args in [&["--image-dir", dir][..], &["--image", "ubuntu"], &["--backend", "jail", "--image-dir", dir]] {
        let args = [&["run", "-c", "print(6 * 7)"], args].concat();
        assert_eq!(cove().run(TestUser::Root, &args).expect_success(), "42\n", "{args:?}");
    }
    for (args, code, expected) in [
        (&["--image-dir", dir, "--image", "once"][..], 2, "a new container for each call"),
        (&["--image-dir", dir, "--image", "tols"], 2, "did you mean `tools`?"),
        (&["--image-dir", dir, "--image", "tools", "--backend", "jail"], 2, "it is not built in"),
        (&["--image", "python"], 2, "`oneshot = false`"),
    ] {
        let args = [&["run", "-c", "1"], args].concat();
        let finished = cove().run(TestUser::Root, &args);
        assert_eq!(finished.code, Some(code), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(expected), "{args:?}: {finished:?}");
    }
}

#[test]
fn serves_named_images_without_a_default_image() {
    let directory = open_directory();
    write(directory.path(), &[("once/Dockerfile", "FROM debian:12\n")]);
    let dir = directory.path().to_str().unwrap();
    let finished = cove().run(TestUser::Root, &["serve", "--image-dir", dir, "--runtime", "runsc"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("no image stays from call to call"), "{finished:?}");
    assert!(finished.stderr.contains("hint: set `--image NAME`"), "{finished:?}");
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--tools", "sessions", "--image-dir", dir, "--runtime", "runsc"]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    assert_eq!(images_and_backends(client.call("list_images", json!({})).structured()), [("once", "container")]);
}

#[test]
fn image_without_an_engine_fails_alone() {
    let directory = open_directory();
    let folder = directory.path().to_str().unwrap().to_owned();
    cove().run(TestUser::Root, &["images", "export", &format!("{folder}/images")]).expect_success();
    let images = directory.path().join("images");
    write(&images, &[("mine/Dockerfile", "FROM debian:12\nCMD [\"cat\"]\n")]);
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--tools", "all", "--image-dir"]).arg(&images);
    // No engine listens there, whatever this machine has.
    command.env("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let needs = client.call("start_session", json!({"image": "mine"}));
    assert!(needs.is_error(), "{needs:?}");
    for words in ["could not reach Docker", "DOCKER_HOST", "hint: start it"] {
        assert!(needs.text().contains(words), "{words}: {needs:?}");
    }
    // Everything else works.
    assert_eq!(client.call("execute_code", json!({"code": "6*7"})).ok(), "42\n");
    let python = client.call("start_session", json!({"image": "python"}));
    let session = python.structured()["session_id"].as_str().unwrap_or_else(|| panic!("{python:?}")).to_owned();
    let lines = client.call("send_lines", json!({"session_id": session, "lines": ["print(6*7)"]}));
    assert_eq!(lines.structured()["stdout"], "42\n", "{lines:?}");
}
