//! The rows of programs that need no engine, and a Python that is kept running.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cove_testkit::measure::{self, BWRAP, PYTHON, PYTHON_FLAGS, bwrap, python};

use super::{ANSWER, CODE, LeftOutPeer, ReportRow, ReportTable};

/// Runs each line that it reads: what a sandbox that keeps its interpreter can take at least.
pub(crate) const LOOP: &str = "import sys\nfor line in sys.stdin:\n    exec(line)\n    sys.stdout.flush()\n";
/// How often a cell runs in one turn; the turn's time is the mean. So many that the first ones, whose caches are cold,
/// hardly count.
pub(crate) const CELLS: u32 = 100;

pub(crate) fn rows(import: &str, left_out: &mut Vec<LeftOutPeer>) -> Vec<ReportRow> {
    let (first, second) = (import.to_owned(), import.to_owned());
    let mut kept = KeptPython::start_bare();
    let mut rows = vec![
        ReportRow::of_other(ReportTable::Start, "bare", "python without a sandbox", || {
            first_byte(python(&mut Command::new(PYTHON), CODE))
        }),
        ReportRow::of_other(ReportTable::Cell, "kept_python", "python kept running, no sandbox", move || {
            kept.mean_time()
        }),
        ReportRow::of_other(ReportTable::Import, "import_bare", "python without a sandbox", move || {
            first_byte(python(&mut Command::new(PYTHON), &first))
        }),
    ];
    if Path::new(BWRAP).exists() {
        let name = "bwrap with the same python";
        rows.push(ReportRow::of_other(ReportTable::Start, "bwrap", name, || first_byte(&mut bwrap(CODE))));
        let time = move || first_byte(&mut bwrap(&second));
        rows.push(ReportRow::of_other(ReportTable::Import, "import_bwrap", name, time));
    } else {
        left_out.push(LeftOutPeer { peer: "bwrap".to_owned(), why: "it is not installed".to_owned() });
    }
    rows
}

/// True if the system's Python has a module.
pub(crate) fn can_import(module: &str) -> bool {
    let mut command = Command::new(PYTHON);
    command.args(["-I", "-c"]).arg(format!("import {module}")).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a program that prints `ANSWER`, and returns the time to its first byte of output.
pub(crate) fn first_byte(command: &mut Command) -> Duration {
    measure::first_byte(command, ANSWER)
}

/// A Python that stays and runs each line that it gets. It ends with its input.
pub(crate) struct KeptPython {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl KeptPython {
    /// Starts a command that ends in a Python with `LOOP`.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the peer starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        Self { child, input, output }
    }

    pub(crate) fn start_bare() -> Self {
        Self::start(python(&mut Command::new(PYTHON), LOOP))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the arguments that start it inside a container.
    pub(crate) fn arguments() -> [&'static str; 6] {
        ["python3", PYTHON_FLAGS[0], PYTHON_FLAGS[1], PYTHON_FLAGS[2], "-c", LOOP]
    }

    fn send(&mut self, code: &str) {
        let input = self.input.as_mut().expect("it is open");
        input.write_all(format!("{code}\n").as_bytes()).expect("it listens");
    }

    /// Returns the time until this many bytes of output were read.
    pub(crate) fn output_time(&mut self, code: &str, bytes: usize) -> Duration {
        let start = Instant::now();
        self.send(code);
        let mut written = vec![0; bytes];
        self.output.read_exact(&mut written).expect("it answers");
        let taken = start.elapsed();
        assert!(written.starts_with(b"xxx") && written.ends_with(b"xxx\n") && self.output.buffer().is_empty());
        taken
    }

    pub(crate) fn mean_time(&mut self) -> Duration {
        mean_time(|| {
            self.send(CODE);
            let mut line = String::new();
            self.output.read_line(&mut line).expect("it answers");
            assert_eq!(line, ANSWER);
        })
    }
}

impl Drop for KeptPython {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Returns the mean time of `CELLS` runs.
pub(crate) fn mean_time(mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..CELLS).for_each(|_| run());
    start.elapsed() / CELLS
}
