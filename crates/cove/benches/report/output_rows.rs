//! The rows of the table *output*: as much text as a model never reads, from code to its reader.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cove_core::output::{OutputCollector, Spool, SpoolBudget};
use cove_testkit::measure::{self, BWRAP, PYTHON, bwrap, python};

use super::code_dialects::{OUTPUT_BYTES, PRINTING};
use super::cove_rows::LiveSession;
use super::processes::KeptPython;
use super::{ReportRow, ReportTable, RowOwner};

/// The rows that need no engine. Cove's reads all of the output, and keeps as much as its settings say.
pub(crate) fn rows() -> Vec<ReportRow> {
    let mut rows = vec![
        other_row("output_python", "python into a pipe, no sandbox", || {
            whole_output(python(&mut Command::new(PYTHON), PRINTING))
        }),
        kept_row("output_kept_python", "python kept running, no sandbox", KeptPython::start_bare()),
    ];
    if std::path::Path::new(BWRAP).exists() {
        rows.push(other_row("output_bwrap", "bwrap with the same python", || whole_output(&mut bwrap(PRINTING))));
    }
    rows
}

pub(crate) fn other_row(id: &str, name: &str, time: impl FnMut() -> Duration + 'static) -> ReportRow {
    ReportRow::new(RowOwner::Other, ReportTable::Output, id, name, time)
}

pub(crate) fn kept_row(id: &str, name: &str, mut kept: KeptPython) -> ReportRow {
    other_row(id, name, move || kept.output_time(PRINTING, OUTPUT_BYTES))
}

/// A live session whose cell prints.
pub(crate) fn session_row(id: &str, name: &str, session: LiveSession) -> ReportRow {
    ReportRow::new(RowOwner::Cove, ReportTable::Output, id, name, move || {
        let start = Instant::now();
        let spool = Spool::new(&SpoolBudget::default());
        let mut collector = OutputCollector::new(session.config.cell.max_output, Some(spool));
        let cell = measure::cell(&session.config, PRINTING);
        let run = session.session.run(cell, |shown| collector.push(shown), std::future::pending());
        let end = session.runtime.block_on(run);
        let collected = collector.finish();
        let taken = start.elapsed();
        let kept = collected.stdout.text.lines().filter(|line| line.starts_with('x')).count() as u64;
        assert!(end.is_success(), "{end:?}");
        assert_eq!(collected.stdout.left_out + kept * 1000, OUTPUT_BYTES as u64, "all of it was counted");
        taken
    })
}

/// Runs a program to its end and returns how long it took until all of its output was read.
pub(crate) fn whole_output(command: &mut Command) -> Duration {
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("the peer starts");
    let taken = start.elapsed();
    assert!(output.status.success() && output.stdout.len() == OUTPUT_BYTES, "{command:?} {}", output.stdout.len());
    taken
}
