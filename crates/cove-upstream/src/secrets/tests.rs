//! Tests of the store: its file, its bounds, hostile files, and helper programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

use super::program::ProgramFailure;
use super::*;

fn process_env() -> ProcessEnv {
    ProcessEnv { env: [("PATH".to_owned(), "/usr/bin:/bin".into())].into(), cwd: "/".into(), stdin_is_terminal: false }
}

fn store(state: &Path) -> SecretStore {
    SecretStore::new(Some(state), None, &process_env())
}

fn report(failure: Failure) -> String {
    failure.report().to_string()
}

#[tokio::test]
async fn keeps_values_in_a_private_file() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let store = store(&state);
    assert_eq!(store.names().await.unwrap(), []);
    assert_eq!(store.get("a").await.unwrap(), None);
    assert!(!store.remove("a").await.unwrap() && !state.exists());
    store.set("github.TOKEN", "one\ntwo").await.unwrap();
    store.set("a", "1").await.unwrap();
    store.set("a", "2").await.unwrap();
    assert_eq!(store.get("github.TOKEN").await.unwrap().as_deref(), Some("one\ntwo"));
    assert_eq!(store.get("a").await.unwrap().as_deref(), Some("2"));
    let names = store.names().await.unwrap();
    assert_eq!(names.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["a", "github.TOKEN"]);
    assert!(names.iter().all(|entry| entry.since.unwrap().elapsed().unwrap().as_secs() < 60));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&state.join("secrets.json"))), (0o700, 0o600));
    assert!(store.remove("a").await.unwrap() && !store.remove("a").await.unwrap());
    assert_eq!(store.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn refuses_names_and_values_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    for name in ["", ".a", "-a", "a b", "a/b", "ü", "a\nb", "${x}", &"x".repeat(129)] {
        let refused = report(store.set(name, "value-value").await.unwrap_err());
        assert!(refused.starts_with("could not use the name of the secret"), "{refused}");
        assert!(store.get(name).await.is_err() && store.remove(name).await.is_err());
    }
    for value in ["", "a\0b", &"x".repeat(MAX_SECRET_VALUE + 1)] {
        let refused = report(store.set("a", value).await.unwrap_err());
        assert!(refused.contains("its value") && !refused.contains("xxx"), "{refused}");
    }
    store.set("a", &"x".repeat(MAX_SECRET_VALUE)).await.unwrap();
    let many: String = (0..1_000).map(|n| format!("\"n{n}\": {{\"value\": \"v\", \"since\": 1}},")).collect();
    let text = format!("{{\"secrets\": {{{}}}}}", many.trim_end_matches(','));
    fs::write(folder.path().join("secrets.json"), text).unwrap();
    assert!(report(store.set("one-more", "x").await.unwrap_err()).contains("1000 secrets already"));
    store.set("n1", "x").await.unwrap();
    assert!(SecretStore::default().set("a", "b").await.is_err());
}

#[tokio::test]
async fn refuses_files_that_are_damaged_or_not_private() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets.json");
    let store = store(folder.path());
    let refused = async || {
        let refused = report(store.get("a").await.unwrap_err());
        assert!(refused.starts_with("could not read the secrets in") && refused.contains("\nhint: "), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
        assert!(store.set("b", "x").await.is_err() && store.names().await.is_err());
        refused
    };
    store.set("a", "hunter2").await.unwrap();
    for mode in [0o640, 0o604, 0o660, 0o622] {
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        assert!(refused().await.contains("chmod 600"), "{mode:o}");
    }
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let before = fs::read(&file).unwrap();
    let huge = "x".repeat(5 * 1024 * 1024);
    for text in ["", "{", "[]", "hunter2", "{\"secrets\": \"hunter2\"}", "{\"secrets\": {\"a\": \"hunter2\"}}", &huge] {
        fs::write(&file, text).unwrap();
        refused().await;
    }
    fs::write(&file, b"\xff\xfe").unwrap();
    refused().await;
    for name in ["", "a b", "-x"] {
        fs::write(&file, format!("{{\"secrets\": {{\"{name}\": {{\"value\": \"v\", \"since\": 1}}}}}}")).unwrap();
        refused().await;
    }
    fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(refused().await.contains("not a regular file"));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused().await;
    fs::remove_dir(&file).unwrap();
    symlink("secrets.json", &file).unwrap();
    refused().await;
    fs::remove_file(&file).unwrap();
    fs::write(folder.path().join("elsewhere"), before).unwrap();
    symlink("elsewhere", &file).unwrap();
    assert!(refused().await.contains("link"));
    fs::remove_file(&file).unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(report(store.set("a", "b").await.unwrap_err()).contains("chmod go-w"));
}

#[tokio::test]
async fn secrets_of_a_killed_writer_do_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    store.set("a", "1").await.unwrap();
    let left = folder.path().join(".new-killed");
    let file = fs::File::create(&left).unwrap();
    assert!(!store.remove("b").await.unwrap() && left.exists(), "another process may be writing it");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(600)).unwrap();
    assert!(!store.remove("b").await.unwrap() && !left.exists());
}

#[tokio::test]
async fn writers_at_the_same_time_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let store = store(folder.path());
        writers.spawn(async move {
            for number in 0..10 {
                store.set(&format!("w{writer}.{number}"), "value").await.unwrap();
            }
        });
    }
    writers.join_all().await;
    assert_eq!(store(folder.path()).names().await.unwrap().len(), 40);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

fn with_helper(folder: &Path, script: &str) -> SecretStore {
    let path = folder.join("helper");
    fs::write(&path, script).unwrap();
    let words = ProgramWords::parse(&format!("/bin/sh {} 'my vault'", path.display())).unwrap();
    SecretStore::new(Some(folder), Some(&words), &process_env())
}

#[tokio::test]
async fn a_helper_keeps_the_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"cd "$(dirname "$0")"; [ "$1" = 'my vault' ] || exit 9
        case $2 in
          set) cat > kept;;
          get) if [ -f kept ]; then cat kept; else echo '{}'; fi;;
          remove) rm kept || echo '{"removed": false}';;
          list) echo '{"names": ["b", "a", "not ours"], "more": 1}';;
        esac"#;
    let store = with_helper(folder.path(), script);
    assert!(store.has_helper());
    assert_eq!(store.get("a").await.unwrap(), None);
    store.set("a", "hunter2 \"\n").await.unwrap();
    assert_eq!(store.get("a").await.unwrap().as_deref(), Some("hunter2 \"\n"));
    assert_eq!(store.names().await.unwrap().iter().map(|entry| &*entry.name).collect::<Vec<_>>(), ["a", "b"]);
    assert!(store.remove("a").await.unwrap() && !store.remove("a").await.unwrap());
    assert!(!folder.path().join("secrets.json").exists());
}

#[tokio::test]
async fn a_helper_that_fails_is_named_and_not_quoted() {
    let folder = tempfile::tempdir().unwrap();
    for (script, cause) in [
        ("echo hunter2; echo hunter2 >&2; exit 1", "exit code 1"),
        ("echo hunter2", "not the JSON object"),
        ("echo '{\"value\": [\"hunter2\"]}'", "not the JSON object"),
        ("echo '{\"value\": \"hunter2\\u0000\"}'", "no usable value"),
        ("yes hunter2", "more than 64 KiB"),
        ("printf '\\377'", "not UTF-8"),
        ("kill -9 $$", "signal 9"),
    ] {
        let failed = report(with_helper(folder.path(), script).get("a").await.unwrap_err());
        assert!(failed.starts_with("could not get secrets with the helper") && failed.contains(cause), "{failed}");
        assert!(failed.contains("try its command with `get`") && !failed.contains("hunter2"), "{failed}");
    }
    let words = ProgramWords::parse("nope-nope x").unwrap();
    let missing = SecretStore::new(None, Some(&words), &process_env());
    assert!(report(missing.names().await.unwrap_err()).contains("there is no such program"));
}

#[tokio::test]
async fn a_helper_that_hangs_is_ended_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper");
    let child = folder.path().join("child");
    fs::write(&path, "sleep 1000 & echo $! > \"$1.new\"; mv \"$1.new\" \"$1\"; wait\n").unwrap();
    let words = ProgramWords::parse(&format!("/bin/sh {}", path.display())).unwrap();
    // A machine under load may need several attempts until the child is there before the time is over.
    for seconds in 1.. {
        let limit = Duration::from_secs(seconds);
        let failure = words.run_within(limit, &[child.to_str().unwrap()], b"", &process_env()).await.unwrap_err();
        assert_eq!(failure, ProgramFailure::TimedOut(limit));
        let Ok(id) = fs::read_to_string(&child) else { continue };
        let id = Pid::from_raw(id.trim().parse().unwrap()).unwrap();
        while rustix::process::test_kill_process(id).is_ok() && !is_zombie(id) {
            std::thread::yield_now();
        }
        break;
    }
}

fn is_zombie(id: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[test]
fn commands_are_words_without_a_shell() {
    let words = |text: &str| ProgramWords::parse(text).map(|words| words.to_string());
    assert_eq!(words(" op read 'op://My Vault/x' ").unwrap(), "op read 'op://My Vault/x'");
    for text in ["", "  ", "a 'b", "\"", "''", "'' a", "a\0b", &"x ".repeat(65), &"x".repeat(4_097)] {
        assert!(words(text).is_err(), "{text:.20}");
    }
}
