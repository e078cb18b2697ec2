//! The contract of `bash` and `sh` cells: the status of a cell is always its own, also on a busy machine, and what lasts
//! from cell to cell is what the guide says.

use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use cove_protocol::{CellOutcome, InterpreterPath, Language};
use cove_testkit::TestUser;
use cove_testkit::figures::{print_figures, sample_size};
use cove_testkit::numbers::SeededNumbers;
use cove_testkit::skip::skip;

use crate::runner::{BareRunner, interpreter_path};

/// Processes that keep every processor busy until they are dropped.
struct BusyMachine(Vec<Child>);

impl BusyMachine {
    fn start() -> Self {
        let count = std::thread::available_parallelism().map_or(2, usize::from).min(4) * 2;
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        Self((0..count).map(|_| spin()).collect())
    }
}

impl Drop for BusyMachine {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A shell, and whether it keeps functions.
struct TestedShell {
    name: &'static str,
    language: Language,
    interpreters: Vec<InterpreterPath>,
    keeps_functions: bool,
}

/// Returns the shells of this machine. `folder` gets a link that makes busybox a shell.
fn shells(test: &str, folder: &std::path::Path) -> Vec<TestedShell> {
    let bash = interpreter_path(Language::Bash, "/bin/bash");
    let sh = |program: &str| interpreter_path(Language::Sh, program);
    let mut shells = vec![
        TestedShell { name: "bash", language: Language::Bash, interpreters: vec![bash.clone()], keeps_functions: true },
        TestedShell {
            name: "sh in bash",
            language: Language::Sh,
            interpreters: vec![sh("/bin/sh"), bash],
            keeps_functions: true,
        },
    ];
    for (name, program) in [("dash", "/bin/dash"), ("busybox", "/bin/busybox")] {
        if !std::path::Path::new(program).exists() {
            skip(test, &format!("{name} is not installed"));
            continue;
        }
        let link = folder.join(name).join("sh");
        std::fs::create_dir(link.parent().unwrap()).unwrap();
        symlink(program, &link).unwrap();
        let interpreters = vec![sh(link.to_str().unwrap())];
        shells.push(TestedShell { name, language: Language::Sh, interpreters, keeps_functions: false });
    }
    shells
}

/// A folder that every user of the tests may read.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn start(shell: &TestedShell, who: TestUser) -> BareRunner {
    let mut bare = BareRunner::start(who, &[]);
    bare.greet(shell.interpreters.clone());
    bare
}

/// How cells end, with `N` for the status that they end with; and whether the shell ends with the cell.
const ENDINGS: [(&str, bool); 9] = [
    ("exit N; echo no", false),
    ("(exit N)", false),
    ("f() { exit N; }; if f; then echo no; fi; echo no", false),
    ("command exit N; echo no", false),
    ("trap 'true' EXIT; exit N", false),
    ("sleep 0.01 & eval 'exit N' >/dev/null", false),
    ("set +e; set -e; sh -c 'exit N'; set +e; (exit N)", false),
    ("exec sh -c 'exit N'", true),
    ("sh -c 'kill -9 $PPID; sleep 1'; echo no", true),
];

#[test]
fn shells_report_each_status_on_a_busy_machine() {
    let test = "shells_report_each_status_on_a_busy_machine";
    let rounds = sample_size(60, 1000);
    let folder = open_folder();
    let _busy = BusyMachine::start();
    for shell in shells(test, folder.path()) {
        let mut bare = start(&shell, TestUser::Root);
        let (mut numbers, mut count) = (SeededNumbers::new(9), 0);
        let mut ended = 0;
        for round in 0..rounds {
            let status = numbers.below(256) as i32;
            let (ending, ends_shell) = *numbers.choose(&ENDINGS);
            let code = format!("n=$((${{n-0}} + 1)); echo $n; {}", ending.replace('N', &status.to_string()));
            bare.begin(shell.language, &code);
            let (outcome, mut written) = bare.wait_for_done();
            if status == 127
                && let Some(note) = written.find("note: each cell is a new sh here")
            {
                written.truncate(note);
            }
            count += 1;
            let expected = match status {
                _ if ending.contains("kill") => "killed by 9".to_owned(),
                status if ends_shell => format!("ended with {status}"),
                0 => "completed".to_owned(),
                status => format!("exited with {status}"),
            };
            let found = match outcome {
                CellOutcome::Completed {} => "completed".to_owned(),
                CellOutcome::Exited { code } => format!("exited with {code}"),
                CellOutcome::InterpreterExited { code } => format!("ended with {code}"),
                CellOutcome::InterpreterKilled { signal, .. } => format!("killed by {signal}"),
                other => format!("{other:?}"),
            };
            assert_eq!((found, written), (expected, format!("{count}\n")), "{}, round {round}: {code}", shell.name);
            if ends_shell {
                count = 0;
                ended += 1;
            }
        }
        let name = shell.name;
        print_figures(&format!("{name}: {rounds} cells, each with its own status; {ended} of them ended the shell"));
    }
}

#[test]
fn shells_keep_what_the_guide_says() {
    let test = "shells_keep_what_the_guide_says";
    let folder = open_folder();
    let shells = shells(test, folder.path());
    for who in TestUser::all(test) {
        for shell in &shells {
            let mut bare = start(shell, who);
            let mut run = |code: &str| {
                bare.begin(shell.language, code);
                bare.wait_for_done()
            };
            let first_folder = run("pwd").1;
            let set = "x='a  b'; export y=2; readonly z=3; cd /usr; umask 027; unset HOME; f() { echo f; }; exit 4";
            assert_eq!(run(set), (CellOutcome::Exited { code: 4 }, String::new()), "{}", shell.name);
            let shown = "a  b,2,3,none\n/usr\n0027\n[][2]\n";
            let show = r#"echo "$x,$y,$z,${HOME-none}"; pwd; umask; sh -c 'echo "[$x][$y]"'"#;
            assert_eq!(run(show), (CellOutcome::Completed {}, shown.into()), "{}", shell.name);
            let (outcome, written) = run("f");
            if shell.keeps_functions {
                assert_eq!((outcome, written.as_str()), (CellOutcome::Completed {}, "f\n"), "{}", shell.name);
            } else {
                assert_eq!(outcome, CellOutcome::Exited { code: 127 }, "{}", shell.name);
                assert!(written.contains("note: each cell is a new sh here"), "{written}");
            }
            // What a shell replaces or kills is lost, and the next cell starts in a new one.
            assert_eq!(run("exec true").0, CellOutcome::InterpreterExited { code: 0 }, "{}", shell.name);
            assert_eq!(run("echo ${x-none}"), (CellOutcome::Completed {}, "none\n".into()), "{}", shell.name);
            // More than is kept ends no cell: the next one says that its shell is new.
            let (outcome, written) = run("x=$(head -c 5000000 /dev/zero | tr '\\0' a); cd /usr; exit 4");
            assert_eq!(outcome, CellOutcome::Exited { code: 4 }, "{}: {written}", shell.name);
            assert_eq!(written.contains("at most 4 MiB of variables"), !shell.keeps_functions, "{written}");
            let kept = if shell.keeps_functions { "5000000 path\n/usr\n" } else { &format!("0 path\n{first_folder}") };
            let shown = run(r#"echo "${#x} ${PATH:+path}"; pwd"#);
            assert_eq!(shown, (CellOutcome::Completed {}, kept.into()), "{}", shell.name);
        }
    }
}

/// `exec` waits for the program, whose status is the cell's; and a cell that closes the shell's own descriptors fails.
#[test]
fn shells_that_lose_their_descriptors_fail() {
    let test = "shells_that_lose_their_descriptors_fail";
    let folder = open_folder();
    for shell in shells(test, folder.path()) {
        let mut bare = start(&shell, TestUser::Root);
        let mut run = |code: &str| {
            bare.begin(shell.language, code);
            bare.wait_for_done()
        };
        let slow = "exec sh -c 'echo begun; sleep 0.3; echo ended; exit 5'";
        assert_eq!(run(slow), (CellOutcome::InterpreterExited { code: 5 }, "begun\nended\n".into()), "{}", shell.name);
        // Busybox itself loops if it cannot restore a descriptor of its own; then the deadline ends the cell.
        let last = if shell.name == "busybox" { 9 } else { 255 };
        let closing = "i=3; while [ $i -le LAST ]; do eval \"exec $i>&-\"; i=$((i + 1)); done; echo closed";
        let (outcome, written) = run(&closing.replace("LAST", &last.to_string()));
        let fresh_is_untouched = !shell.keeps_functions && outcome == CellOutcome::Completed {};
        assert!(
            matches!(outcome, CellOutcome::InterpreterExited { code } if code != 0)
                || matches!(outcome, CellOutcome::Exited { code } if code != 0)
                || (fresh_is_untouched && written == "closed\n"),
            "{}: {outcome:?} {written}",
            shell.name
        );
        // One stream a cell: the order between two of them is not fixed.
        for (code, written) in [("echo out", "out\n"), ("echo err >&2", "err\n")] {
            assert_eq!(run(code), (CellOutcome::Completed {}, written.into()), "{}: {code}", shell.name);
        }
        if shell.keeps_functions {
            for closing in ["exec 232>/dev/null >/dev/null", "exec 233>&- 232>&-", "exec 231<&-"] {
                assert_eq!(run(closing).0, CellOutcome::Completed {}, "{}: {closing}", shell.name);
                // Bash restores its own descriptors after `exec`, unless the runner has inherited descriptor 10: then they
                // are the cell's. Either way no output is lost without a failure.
                let next = run("echo out");
                let is_restored = next == (CellOutcome::Completed {}, "out\n".into());
                let has_failed = next.0 == CellOutcome::InterpreterExited { code: 3 };
                assert!(is_restored || has_failed, "{}: {closing}: {next:?}", shell.name);
                assert_eq!(run("echo out"), (CellOutcome::Completed {}, "out\n".into()), "{}: {closing}", shell.name);
            }
        }
    }
}
