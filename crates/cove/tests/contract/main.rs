//! One suite for every backend: what a session promises, whatever it runs in. A backend that this machine does not
//! have is skipped by name.

mod suite;

use std::path::PathBuf;

use cove_core::backend::Backend;
use cove_core::policy::ImageRecipe;
use cove_testkit::containers::{ImageBackend, TestEngine, compose_recipe, recipe};
use cove_testkit::{TestProgram, TestUser, measure};

/// A test for each promise on each backend.
macro_rules! promises {
    ($($promise:ident,)*) => {
        mod jail {
            $(
                #[test]
                fn $promise() {
                    super::check(concat!("jail::", stringify!($promise)), |backend| Box::pin(super::suite::$promise(backend)));
                }
            )*
        }

        mod docker {
            $(
                #[test]
                fn $promise() {
                    super::check_containers(
                        concat!("docker::", stringify!($promise)),
                        super::TestEngine::Docker,
                        |backend| Box::pin(super::suite::$promise(backend)),
                    );
                }
            )*
        }

        mod podman {
            $(
                #[test]
                fn $promise() {
                    super::check_containers(
                        concat!("podman::", stringify!($promise)),
                        super::TestEngine::Podman,
                        |backend| Box::pin(super::suite::$promise(backend)),
                    );
                }
            )*
        }

    };
}

/// In the main container of a Compose file: the promises for which it matters that the runner is not the first
/// process, has no image of its own and shares its limits. Starting one takes seconds.
macro_rules! promises_of_compose {
    ($($promise:ident,)*) => {
        mod compose {
            $(
                #[test]
                fn $promise() {
                    super::check_compose(
                        concat!("compose::", stringify!($promise)),
                        |backend| Box::pin(super::suite::$promise(backend)),
                    );
                }
            )*
        }
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

type ContractCheck = for<'a> fn(&'a dyn Backend) -> std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs as the user of the tests and, if that is root, as the test user too, in a process of its own.
fn check(test: &str, promise: ContractCheck) {
    let program = match std::env::var_os(PROGRAM) {
        Some(copied) => PathBuf::from(copied),
        None => TestProgram::new(env!("CARGO_BIN_EXE_cove")).path().to_owned(),
    };
    let backend = measure::jail(&program);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(promise(&backend));
    if std::env::var_os(PROGRAM).is_none() && TestUser::all(test) == [TestUser::Root, TestUser::Ordinary] {
        let own = TestProgram::new(std::env::current_exe().unwrap());
        let finished = own.command(TestUser::Ordinary).env(PROGRAM, &program).args(["--exact", test]).output().unwrap();
        let text = String::from_utf8_lossy(&finished.stdout);
        assert!(finished.status.success() && text.contains("1 passed"), "as an ordinary user: {text}");
    }
}

/// Runs in containers of the image that has every language.
fn check_containers(test: &str, engine: TestEngine, promise: ContractCheck) {
    check_recipe(test, engine, recipe(), promise);
}

fn check_compose(test: &str, promise: ContractCheck) {
    let folder = tempfile::tempdir().unwrap();
    check_recipe(test, TestEngine::Docker, compose_recipe(folder.path()), promise);
}

fn check_recipe(test: &str, engine: TestEngine, recipe: ImageRecipe, promise: ContractCheck) {
    let Some(address) = engine.address(test) else { return };
    let program = TestProgram::new(env!("CARGO_BIN_EXE_cove"));
    let backend = ImageBackend { backend: engine.backend(&address, program.path()), recipe };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(promise(&backend));
}

/// Names the program for a test that another test started.
const PROGRAM: &str = "COVE_TEST_PROGRAM";
