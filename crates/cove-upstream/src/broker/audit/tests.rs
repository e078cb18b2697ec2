//! Audit files that fill up, end within a line, are shared, renamed or replaced.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::*;

fn test_line(tool: &str) -> AuditLine {
    AuditLine {
        time: 1,
        principal: "me".into(),
        session: "s_1".into(),
        cell: 1,
        server: "github".into(),
        tool: tool.into(),
        arguments: "00".into(),
        outcome: "ok".into(),
        ms: 3,
    }
}

#[test]
fn appends_lines_and_rotates_audit_files() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let size = serde_json::to_vec(&test_line("a")).unwrap().len() as u64 + 1;
    // One byte more, for the break after half a line.
    let mut audit = AuditFile::with_limit(&state, 2 * size + 1).unwrap();
    // A second process, whose lines must not be lost either.
    let mut other = AuditFile::with_limit(&state, 2 * size + 1).unwrap();
    for number in 0..12 {
        let writer = if number % 3 == 0 { &mut other } else { &mut audit };
        writer.append(&test_line(&(number % 10).to_string())).unwrap();
    }
    let files = list_files(&state);
    assert_eq!(files.len(), FILES, "older ones are gone");
    let tools: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let lines: Vec<AuditLine> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            lines
        })
        .map(|line| line.tool)
        .collect();
    assert_eq!(tools, ["4", "5", "6", "7", "8", "9", "0", "1"]);
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
}

fn read_tools(file: &Path) -> Vec<Result<String, String>> {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let parse = |line: &str| serde_json::from_str::<AuditLine>(line).map(|line| line.tool).map_err(|_| line.to_owned());
    text.lines().map(parse).collect()
}

#[test]
fn a_line_after_half_a_line_starts_a_new_one() {
    let state = tempfile::tempdir().unwrap();
    let mut audit = AuditFile::open(state.path()).unwrap();
    audit.append(&test_line("first")).unwrap();
    // A process was killed within its line.
    let file = audit_path(state.path());
    let half = fs::metadata(&file).unwrap().len() / 2;
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(half).unwrap();
    audit.append(&test_line("second")).unwrap();
    AuditFile::open(state.path()).unwrap().append(&test_line("third")).unwrap();
    let tools = read_tools(&file);
    assert!(tools[0].is_err(), "{tools:?}");
    assert_eq!(tools[1..], [Ok("second".to_owned()), Ok("third".to_owned())]);
}

#[test]
fn goes_on_under_its_name_after_a_rename_or_a_removal() {
    let state = tempfile::tempdir().unwrap();
    let mut audit = AuditFile::open(state.path()).unwrap();
    let (file, kept) = (audit_path(state.path()), state.path().join("kept"));
    audit.append(&test_line("a")).unwrap();
    fs::rename(&file, &kept).unwrap();
    audit.reserve(1000).unwrap();
    audit.append(&test_line("b")).unwrap();
    assert_eq!((read_tools(&kept).len(), read_tools(&file)), (1, vec![Ok("b".to_owned())]));
    fs::remove_file(&file).unwrap();
    audit.append(&test_line("c")).unwrap();
    assert_eq!(read_tools(&file), [Ok("c".to_owned())]);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // A truncated file goes on too.
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(0).unwrap();
    audit.append(&test_line("d")).unwrap();
    assert_eq!(read_tools(&file), [Ok("d".to_owned())]);
    // What is put in its place is not used.
    fs::rename(&file, &kept).unwrap();
    std::os::unix::fs::symlink(&kept, &file).unwrap();
    assert!(audit.append(&test_line("e")).unwrap_err().to_string().contains("symbolic link"));
    assert_eq!(read_tools(&kept), [Ok("d".to_owned())]);
}

#[test]
fn several_writers_lose_no_line_while_the_file_rotates() {
    let state = tempfile::tempdir().unwrap();
    let write = |writer: usize| {
        let mut audit = AuditFile::with_limit(state.path(), 8192).unwrap();
        for number in 0..40 {
            audit.reserve(1000).unwrap();
            audit.append(&test_line(&format!("{writer}-{number}"))).unwrap();
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|writer| drop(scope.spawn(move || write(writer)))));
    let mut tools: Vec<String> =
        list_files(state.path()).iter().flat_map(|file| read_tools(file)).map(Result::unwrap).collect();
    tools.sort();
    tools.dedup();
    assert_eq!(tools.len(), 160);
}

const DISK: &str = "COVE_TEST_SMALL_DISK";

/// Runs itself again in namespaces with a disk of 16 kB.
#[test]
fn a_line_that_does_not_fit_leaves_nothing() {
    let Some(disk) = std::env::var_os(DISK).map(PathBuf::from) else {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("mount -t tmpfs -o size=16k,mode=700 none \"${DISK}\" || exit 99; exec \"$0\" \"$@\"");
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture"]);
        command.arg("broker::audit::tests::a_line_that_does_not_fit_leaves_nothing").env(DISK, folder.path());
        let status = command.status().unwrap();
        // Some machines let no user mount.
        assert!(status.success() || matches!(status.code(), Some(1 | 99)), "{status}");
        return;
    };
    let line = AuditLine { arguments: "a".repeat(700), ..test_line("x") };
    let (mut one, mut other) = (AuditFile::open(&disk).unwrap(), AuditFile::open(&disk).unwrap());
    let mut count = 0;
    let error = loop {
        match one.append(&line) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(count > 10, "{count}");
    let file = audit_path(&disk);
    assert_eq!(read_tools(&file).len(), count, "nothing of the last one");
    assert_eq!(other.append(&line).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(other.reserve(5000).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(read_tools(&file).len(), count);
    drop(other);
    // A full disk has room for nothing, and an earlier reservation still holds.
    fs::remove_file(&file).unwrap();
    one.append(&line).unwrap();
    one.reserve(3000).unwrap();
    let mut filler = fs::File::create(disk.join("filler")).unwrap();
    while filler.write_all(&[0; 1024]).is_ok() {}
    for _ in 0..3 {
        one.append(&line).unwrap();
    }
    assert_eq!(read_tools(&file).len(), 4);
}

#[test]
fn digest_distinguishes_but_hides_arguments() {
    let of = |value: Value| digest_arguments(value.as_object().unwrap());
    assert_eq!(of(json!({"a": 1, "b": [null, "x"]})), of(json!({"b": [null, "x"], "a": 1})));
    let mut all = vec![
        of(json!({})),
        of(json!({"a": null})),
        of(json!({"a": "1"})),
        of(json!({"a": 1})),
        of(json!({"a": [1, 2]})),
        of(json!({"a": [12]})),
        of(json!({"a": {"b": 1}})),
    ];
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 7);
    assert!(!of(json!({"token": "secret"})).contains("secret"));
}
