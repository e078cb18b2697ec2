//! One suite, the same for every backend: what a session promises whatever it runs in. A backend that is not here on
//! this machine is skipped by name.

mod suite;

use std::path::PathBuf;

use cove::backend::Backend;
use cove::image::Recipe;
use cove_testkit::containers::{InImage, Maker, composed, recipe};
use cove_testkit::{Program, Who, measure};

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
                        super::Maker::Docker,
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
                        super::Maker::Podman,
                        |backend| Box::pin(super::suite::$promise(backend)),
                    );
                }
            )*
        }

    };
}

/// In the main container of a Compose file: those promises for which it matters that the runner is not its first process,
/// has no image of its own and shares its limits. To start one takes seconds.
macro_rules! promises_of_compose {
    ($($promise:ident,)*) => {
        mod compose {
            $(
                #[test]
                fn $promise() {
                    super::check_composed(
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
    a_soft_interrupt_keeps_variables_in_every_language,
    a_language_that_was_killed_starts_afresh_and_says_so,
    files_go_in_and_out_while_a_cell_runs,
    a_full_disk_leaves_no_half_file,
    two_sessions_do_not_see_each_other,
    a_child_that_keeps_its_output_open_does_not_hold_the_cell,
    a_cancelled_cell_stops,
    memory_beyond_the_limit_ends_the_interpreter_and_is_said,
    processes_are_bounded,
    code_calls_the_host_in_every_language,
    a_session_that_was_stopped_is_over_at_once,
    a_program_that_is_late_is_ended,
}

promises! {
    each_language_keeps_its_state_over_three_cells,
    languages_share_the_workspace,
    a_soft_interrupt_keeps_variables_in_every_language,
    failures_are_told_in_every_language,
    a_language_that_was_killed_starts_afresh_and_says_so,
    files_go_in_and_out_while_a_cell_runs,
    bad_paths_are_refused_and_leave_nothing,
    a_full_disk_leaves_no_half_file,
    two_sessions_do_not_see_each_other,
    output_of_child_processes_is_captured_in_order,
    a_child_that_keeps_its_output_open_does_not_hold_the_cell,
    output_between_cells_comes_with_the_next,
    images_that_code_shows_come_back,
    standard_input_is_empty_unless_given,
    control_sequences_are_taken_out_and_counted,
    a_cancelled_cell_stops,
    memory_beyond_the_limit_ends_the_interpreter_and_is_said,
    an_allocation_beyond_memory_is_an_ordinary_exception,
    processes_are_bounded,
    every_byte_arrives,
    code_calls_the_host_in_every_language,
    twenty_sessions_at_once_do_not_mix,
    a_session_that_was_stopped_is_over_at_once,
    a_program_reads_the_code_and_its_output_is_captured,
    the_end_of_a_program_is_told,
    no_shell_stands_between_a_program_and_the_runner,
    a_program_that_leaves_a_child_does_not_hold_the_cell,
    a_program_that_is_late_is_ended,
}

type Check = for<'a> fn(&'a dyn Backend) -> std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// As whoever runs the tests, and if that is root, as the test user too, in a process of its own.
fn check(test: &str, promise: Check) {
    let program = match std::env::var_os(PROGRAM) {
        Some(copied) => PathBuf::from(copied),
        None => Program::new(env!("CARGO_BIN_EXE_cove")).path().to_owned(),
    };
    let backend = measure::jail(&program);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(promise(&backend));
    if std::env::var_os(PROGRAM).is_none() && Who::all(test) == [Who::Root, Who::User] {
        let own = Program::new(std::env::current_exe().unwrap());
        let finished =
            own.command(Who::User).env(PROGRAM, &program).args(["--exact", test]).output().unwrap();
        let text = String::from_utf8_lossy(&finished.stdout);
        assert!(finished.status.success() && text.contains("1 passed"), "as an ordinary user: {text}");
    }
}

/// In containers of the image that has every language.
fn check_containers(test: &str, maker: Maker, promise: Check) {
    check_recipe(test, maker, recipe(), promise);
}

fn check_composed(test: &str, promise: Check) {
    let folder = tempfile::tempdir().unwrap();
    check_recipe(test, Maker::Docker, composed(folder.path()), promise);
}

fn check_recipe(test: &str, maker: Maker, recipe: Recipe, promise: Check) {
    let Some(address) = maker.address(test) else { return };
    let program = Program::new(env!("CARGO_BIN_EXE_cove"));
    let backend = InImage { backend: maker.backend(&address, program.path()), recipe };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(promise(&backend));
}

/// Where a test that was started by another finds the program.
const PROGRAM: &str = "COVE_TEST_PROGRAM";
