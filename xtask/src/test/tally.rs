//! Counts results: the closing lines of `cargo test`, of Python's unittest and of node, and the entries of the skip
//! log.

use std::collections::BTreeSet;
use std::process::ExitStatus;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TestTally {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
    /// Names of tests that passed, as libtest prints them.
    names: Vec<String>,
}

/// One line `SKIPPED: <test> because <reason>`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SkippedTest {
    pub(super) line: String,
    test: String,
    reason: String,
}

impl TestTally {
    /// Sums the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …`, one per test program.
    pub(super) fn of_cargo(output: &str) -> Self {
        let mut tally = TestTally::default();
        for line in output.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                let result = result.split_once(". ").map_or("", |(_, counts)| counts);
                for count in result.split("; ") {
                    match count.split_once(' ') {
                        Some((number, "passed")) => tally.passed += number.parse().unwrap_or(0),
                        Some((number, "failed")) => tally.failed += number.parse().unwrap_or(0),
                        Some((number, "ignored")) => tally.skipped += number.parse().unwrap_or(0),
                        _ => {}
                    }
                }
            } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... ok")) {
                tally.names.push(name.to_owned());
            }
        }
        tally
    }

    /// Reads `Ran 7 tests in 0.1s` and `FAILED (failures=1, errors=1, skipped=2)`.
    pub(super) fn of_unittest(output: &str) -> Self {
        let ran = output.lines().rev().find_map(|line| line.strip_prefix("Ran "));
        let ran = ran.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0);
        let verdict = output.lines().rev().find(|line| {
            ["OK", "FAILED", "NO TESTS RAN"].iter().any(|word| *line == *word || line.starts_with(&format!("{word} (")))
        });
        let mut tally = TestTally::default();
        let counts = verdict.and_then(|line| line.split_once('(')).map_or("", |(_, rest)| rest.trim_end_matches(')'));
        for (what, number) in counts.split(", ").filter_map(|count| count.split_once('=')) {
            let number = number.parse().unwrap_or(0);
            match what {
                "failures" | "errors" | "unexpected successes" => tally.failed += number,
                "skipped" => tally.skipped += number,
                _ => {}
            }
        }
        tally.passed = usize::saturating_sub(ran, tally.failed + tally.skipped);
        tally
    }

    /// Reads the closing lines of node's runner: `# pass 3`.
    pub(super) fn of_node(output: &str) -> Self {
        let count = |name: &str| {
            let lines = output.lines().filter_map(|line| line.strip_prefix("# ")?.strip_prefix(name));
            lines.filter_map(|number| number.trim().parse::<usize>().ok()).sum()
        };
        TestTally {
            passed: count("pass "),
            failed: count("fail "),
            skipped: count("skipped ") + count("todo "),
            names: Vec::new(),
        }
    }

    /// Counts a program that fails without naming a failed test (it did not compile, it crashed, it found no test) as
    /// one failure, so that the closing line never hides it.
    pub(super) fn ended(mut self, status: ExitStatus) -> Self {
        if !status.success() && self.failed == 0 {
            self.failed = 1;
        }
        self
    }

    pub(super) fn add(&mut self, other: &TestTally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.names.extend(other.names.iter().cloned());
    }

    pub(super) fn add_skips(&mut self, skips: &[SkippedTest]) {
        self.skipped += skips.len();
        self.leave_out(skips);
    }

    /// Subtracts skipped tests from the passed ones, because libtest counts a test that returned early as passed.
    /// Returns how many tests these are; a test that would run on two engines counts once.
    pub(super) fn leave_out(&mut self, skips: &[SkippedTest]) -> usize {
        let skipped: BTreeSet<&str> = skips.iter().map(|skip| skip.test.as_str()).collect();
        let same = |name: &str, test: &str| name == test || name.ends_with(&format!("::{test}"));
        // Each test counts once, even if it was skipped as one user and left out as another.
        let before = self.names.len();
        self.names.retain(|name| !skipped.iter().any(|test| same(name, test)));
        self.passed = self.passed.saturating_sub(before - self.names.len());
        skipped.len()
    }

    pub(super) fn refuse_skips(&mut self, count: usize) {
        self.skipped = self.skipped.saturating_sub(count);
        self.failed += count;
    }

    pub(super) fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl SkippedTest {
    pub(super) fn parse_all(log: &str) -> Vec<Self> {
        log.lines()
            .filter_map(|line| {
                let rest = line.strip_prefix("SKIPPED: ")?;
                let (test, reason) = rest.split_once(" because ").unwrap_or((rest, ""));
                Some(SkippedTest { line: line.to_owned(), test: test.to_owned(), reason: reason.to_owned() })
            })
            .collect()
    }

    /// True if the test needs what only `--all` sets up: `cove_testkit::skip::NEEDS_ALL` is this text.
    pub(super) fn needs_all(&self) -> bool {
        self.reason.starts_with("it needs `cargo xtask test --all`")
    }

    /// True if no set-up can help: it installs programs and creates users, but cannot change the kernel or the
    /// processor.
    pub(super) fn is_beyond_set_up(&self) -> bool {
        self.reason.starts_with("not on this machine:")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const CARGO: &str = "\
running 2 tests
test plan::a_path ... ok
test enter ... ignored
test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 3 tests
test it::as_root ... ok
test it::broken ... FAILED
test long ... ok
the program printed: test result: ok. 99 passed; 0 failed
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    fn check(tally: TestTally, line: &str) {
        assert_eq!(tally.line(), line);
    }

    #[test]
    fn cargo_s_results_are_summed() {
        check(TestTally::of_cargo(CARGO), "3 passed, 1 failed, 1 skipped");
        check(TestTally::of_cargo(""), "0 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn unittest_s_result_is_read() {
        let output = |verdict: &str| format!("...\n-----\nRan 9 tests in 0.012s\n\n{verdict}\n");
        check(TestTally::of_unittest(&output("OK")), "9 passed, 0 failed, 0 skipped");
        check(TestTally::of_unittest(&output("OK (skipped=2)")), "7 passed, 0 failed, 2 skipped");
        check(
            TestTally::of_unittest(&output("FAILED (failures=1, errors=2, skipped=1)")),
            "5 passed, 3 failed, 1 skipped",
        );
        check(
            TestTally::of_unittest(&output("FAILED (expected failures=1, unexpected successes=2)")),
            "7 passed, 2 failed, 0 skipped",
        );
        check(TestTally::of_unittest("No module named unittest"), "0 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn node_s_result_is_read() {
        check(
            TestTally::of_node("# tests 5\n# pass 3\n# fail 1\n# cancelled 0\n# skipped 1\n# todo 0\n"),
            "3 passed, 1 failed, 1 skipped",
        );
    }

    #[test]
    fn a_program_that_fails_without_a_failed_test_is_a_failure() {
        let [success, failure] = [0, 101 << 8].map(ExitStatus::from_raw);
        check(TestTally::default().ended(failure), "0 passed, 1 failed, 0 skipped");
        check(TestTally::default().ended(success), "0 passed, 0 failed, 0 skipped");
        check(TestTally::of_cargo(CARGO).ended(failure), "3 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_skipped_test_does_not_count_as_passed() {
        let mut tally = TestTally::default();
        tally.add(&TestTally::of_cargo(CARGO));
        let log = "SKIPPED: as_root because not root\nSKIPPED: one case because no tool\nnoise\n";
        let skips = SkippedTest::parse_all(log);
        assert_eq!(skips.len(), 2);
        tally.add_skips(&skips);
        assert_eq!(tally.line(), "2 passed, 1 failed, 3 skipped");
        tally.refuse_skips(2);
        check(tally, "2 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn what_is_left_out_is_neither_passed_nor_skipped_nor_failed() {
        let mut tally = TestTally::of_cargo(
            "test docker::a ... ok\ntest a ... ok\ntest b ... ok\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        let log = "SKIPPED: docker::a because it needs `cargo xtask test --all`: no Docker\n\
                   SKIPPED: b because it needs `cargo xtask test --all`: no Docker\n\
                   SKIPPED: b because it needs `cargo xtask test --all`: no Podman\n";
        let skips = SkippedTest::parse_all(log);
        assert!(skips.iter().all(SkippedTest::needs_all));
        assert_eq!(tally.leave_out(&skips), 2);
        assert_eq!(tally.line(), "1 passed, 0 failed, 0 skipped");
        // A test that was left out already is not subtracted from the passed ones again.
        tally.add_skips(&SkippedTest::parse_all("SKIPPED: b because not on this machine: not root\n"));
        check(tally, "1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn only_what_no_set_up_gives_may_be_skipped() {
        let allowed = |line: &str| SkippedTest::parse_all(line)[0].is_beyond_set_up();
        assert!(allowed("SKIPPED: a because not on this machine: the kernel has no landlock"));
        assert!(!allowed("SKIPPED: a because python is missing"));
        assert!(!allowed("SKIPPED: a"));
    }
}
