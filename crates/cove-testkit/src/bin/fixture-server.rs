//! The program of [`cove_testkit::fixture`].

fn main() {
    cove_testkit::fixture::main();
}
