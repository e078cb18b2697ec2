//! One suite for every backend: what a session promises, whatever it runs in, and whether it was kept ready or not. A
//! backend that this machine does not have is skipped by name.

mod session_starter;
mod suite;

use std::path::PathBuf;
use std::pin::Pin;

use cove_core::backend::Backend;
use cove_core::policy::ImageRecipe;
use cove_protocol::Language;
use cove_testkit::containers::{ImageBackend, TestEngine, compose_recipe, recipe};
use cove_testkit::{TestProgram, TestUser, measure};

use crate::session_starter::{SessionStart, SessionStarter};

/// A test for each promise, in a module for one kind of sandboxes and one way to start their sessions.
macro_rules! promises_in {
    ($module:ident, $kind:expr, $start:expr, $($promise:ident,)*) => {
        mod $module {
            use super::*;

            $(
                #[test]
                fn $promise() {
                    let test = concat!(stringify!($module), "::", stringify!($promise));
                    check(test, $kind, $start, |starter| Box::pin(suite::$promise(starter)));
                }
            )*
        }
    };
}

macro_rules! promises {
    ($($promise:ident,)*) => {
        promises_in!(jail, SandboxKind::Jail, SessionStart::OnTheSpot, $($promise,)*);
        promises_in!(jail_with_ready_python, SandboxKind::Jail, ready(Language::Python), $($promise,)*);
        promises_in!(jail_with_ready_node, SandboxKind::Jail, ready(Language::Node), $($promise,)*);
        promises_in!(jail_with_ready_bash, SandboxKind::Jail, ready(Language::Bash), $($promise,)*);
        promises_in!(jail_with_ready_sh, SandboxKind::Jail, ready(Language::Sh), $($promise,)*);
        promises_in!(jail_with_preloaded_python, SandboxKind::Jail, PRELOADED, $($promise,)*);
        promises_in!(docker, SandboxKind::Container(TestEngine::Docker), SessionStart::OnTheSpot, $($promise,)*);
        promises_in!(docker_with_preloaded_python, SandboxKind::Container(TestEngine::Docker), PRELOADED, $($promise,)*);
        promises_in!(podman, SandboxKind::Container(TestEngine::Podman), SessionStart::OnTheSpot, $($promise,)*);
        promises_in!(podman_with_preloaded_python, SandboxKind::Container(TestEngine::Podman), PRELOADED, $($promise,)*);
    };
}

/// In the main container of a Compose file: the promises for which it matters that the runner is not the first
/// process, has no image of its own and shares its limits. Starting one takes seconds, and none is kept ready.
macro_rules! promises_of_compose {
    ($($promise:ident,)*) => {
        promises_in!(compose, SandboxKind::Compose, SessionStart::OnTheSpot, $($promise,)*);
    };
}

promises_of_compose! {
    each_language_keeps_its_state_over_three_cells,
    interrupt_keeps_variables_in_every_language,
    killed_interpreter_restarts_and_says_so,
    files_go_in_and_out_while_a_cell_runs,
    full_disk_leaves_no_partial_file,
    two_sessions_do_not_see_each_other,
    child_with_open_output_does_not_block_the_cell,
    cancelled_cell_stops,
    exceeding_memory_kills_the_interpreter_and_is_reported,
    a_child_killed_for_memory_is_reported,
    limits_the_number_of_processes,
    code_calls_the_host_in_every_language,
    stopped_session_ends_at_once,
    timed_out_program_is_killed,
}

promises! {
    each_language_keeps_its_state_over_three_cells,
    languages_share_the_workspace,
    interrupt_keeps_variables_in_every_language,
    reports_failures_in_every_language,
    killed_interpreter_restarts_and_says_so,
    files_go_in_and_out_while_a_cell_runs,
    rejects_bad_paths_and_leaves_nothing,
    full_disk_leaves_no_partial_file,
    two_sessions_do_not_see_each_other,
    output_of_child_processes_is_captured_in_order,
    child_with_open_output_does_not_block_the_cell,
    output_between_cells_arrives_with_the_next_cell,
    returns_images_that_code_displays,
    standard_input_is_empty_unless_given,
    strips_and_counts_control_sequences,
    cancelled_cell_stops,
    exceeding_memory_kills_the_interpreter_and_is_reported,
    a_child_killed_for_memory_is_reported,
    oversized_allocation_raises_an_ordinary_exception,
    limits_the_number_of_processes,
    delivers_every_output_byte,
    code_calls_the_host_in_every_language,
    twenty_sessions_at_once_do_not_mix,
    stopped_session_ends_at_once,
    a_program_reads_the_code_and_its_output_is_captured,
    reports_how_a_program_ended,
    runs_programs_without_a_shell,
    program_with_a_leftover_child_does_not_block_the_cell,
    timed_out_program_is_killed,
}

type ContractCheck = for<'a> fn(&'a SessionStarter<'a>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What the sessions of a test run in.
#[derive(Debug, Clone, Copy)]
enum SandboxKind {
    Jail,
    /// Containers of the image that has every language.
    Container(TestEngine),
    Compose,
}

const fn ready(language: Language) -> SessionStart {
    SessionStart::Ready { language, modules: &[] }
}

/// One module that the shim needs too, one with threads and sockets, and one in C.
const PRELOADED: SessionStart =
    SessionStart::Ready { language: Language::Python, modules: &["json", "asyncio", "decimal"] };

fn check(test: &str, kind: SandboxKind, start: SessionStart, promise: ContractCheck) {
    match kind {
        SandboxKind::Jail => check_jail(test, start, promise),
        SandboxKind::Container(engine) => check_recipe(test, engine, recipe(), start, promise),
        SandboxKind::Compose => {
            let folder = tempfile::tempdir().unwrap();
            check_recipe(test, TestEngine::Docker, compose_recipe(folder.path()), start, promise);
        }
    }
}

/// Runs as the user of the tests and, if that is root, as the test user too, in a process of its own.
fn check_jail(test: &str, start: SessionStart, promise: ContractCheck) {
    let program = match std::env::var_os(PROGRAM) {
        Some(copied) => PathBuf::from(copied),
        None => TestProgram::new(env!("CARGO_BIN_EXE_cove")).path().to_owned(),
    };
    run(&measure::jail(&program), start, promise);
    if std::env::var_os(PROGRAM).is_none() && TestUser::all(test) == [TestUser::Root, TestUser::Ordinary] {
        let own = TestProgram::new(std::env::current_exe().unwrap());
        let finished = own.command(TestUser::Ordinary).env(PROGRAM, &program).args(["--exact", test]).output().unwrap();
        let text = String::from_utf8_lossy(&finished.stdout);
        assert!(finished.status.success() && text.contains("1 passed"), "as an ordinary user: {text}");
    }
}

fn check_recipe(test: &str, engine: TestEngine, recipe: ImageRecipe, start: SessionStart, promise: ContractCheck) {
    let Some(address) = engine.address(test) else { return };
    let program = TestProgram::new(env!("CARGO_BIN_EXE_cove"));
    run(&ImageBackend { backend: engine.backend(&address, program.path()), recipe }, start, promise);
}

fn run(backend: &dyn Backend, start: SessionStart, promise: ContractCheck) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(promise(&SessionStarter { backend, start }));
}

/// Names the program for a test that another test started.
const PROGRAM: &str = "COVE_TEST_PROGRAM";
