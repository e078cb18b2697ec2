"""Questions about code that a person is writing."""

import os
import tempfile
import unittest

from driver import Case, each

COMPLETE, OPEN = "complete", "open"


class Completeness(Case):
    def check_all(self, cases):
        for code, expected in cases:
            with self.subTest(code=code):
                self.assertEqual(self.sh.ask("c", code), expected)

    def test_quotes(self):
        self.check_all(
            [
                ("", COMPLETE),
                ("ls -l", COMPLETE),
                ("# it's a comment", COMPLETE),
                ("echo hi # it's", COMPLETE),
                ("echo 'a", OPEN),
                ("echo 'a\nb'", COMPLETE),
                ("echo 'a\\'", COMPLETE),
                ('echo "a', OPEN),
                ('echo "a\\"', OPEN),
                ("echo it\\'s", COMPLETE),
                ("echo \"$(echo ')')\"", COMPLETE),
                ('echo "$(ls', OPEN),
                ('echo "$(ls\n)"', COMPLETE),
                ("echo `ls", OPEN),
                ("echo `ls`", COMPLETE),
                ("echo ${x", OPEN),
                ("echo ${x:-}}", COMPLETE),
            ]
        )

    def test_joined_lines_and_operators(self):
        self.check_all(
            [
                ("echo a \\", OPEN),
                ("echo a \\\nb", COMPLETE),
                ("echo a \\\\", COMPLETE),
                ("ls |", OPEN),
                ("ls |\nwc", COMPLETE),
                ("a &&", OPEN),
                ("a || # why", OPEN),
                ("sleep 1 &", COMPLETE),
                ("a; ", COMPLETE),
            ]
        )

    def test_compound_commands(self):
        self.check_all(
            [
                ("if true", OPEN),
                ("if true; then", OPEN),
                ("if true; then echo a; fi", COMPLETE),
                ("if true; then if x; then y; fi", OPEN),
                ("echo if", COMPLETE),
                ("for x in a b; do", OPEN),
                ("for x in a b; do echo $x; done", COMPLETE),
                ("while read x; do echo $x; done < file", COMPLETE),
                ("until x; do", OPEN),
                ("case $x in", OPEN),
                ("case $x in a) echo a;;", OPEN),
                ("case $x in\na) echo a;;\n(b) if c; then d; fi;;\nesac", COMPLETE),
                ("{", OPEN),
                ("{ echo a; }", COMPLETE),
                ("{ echo }", OPEN),
                ("(cd /tmp", OPEN),
                ("f() {", OPEN),
                ("f()", OPEN),
                ("f()\n{\n  echo a\n}", COMPLETE),
                ("echo $((1 + (2 * 3)))", COMPLETE),
                ("echo $((1 +", OPEN),
            ]
        )

    def test_documents(self):
        self.check_all(
            [
                ("cat << END", OPEN),
                ("cat <<END\nit's", OPEN),
                ("cat <<END\nit's\nEND", COMPLETE),
                ("cat <<END\n END", OPEN),
                ("cat <<-END\n\tEND", COMPLETE),
                ("cat <<'a b'\n$(\na b", COMPLETE),
                ("cat <<A <<B\nA\nB", COMPLETE),
                ("cat <<A <<B\nA", OPEN),
                ("for x in a; do cat <<END\ndone\nEND\ndone", COMPLETE),
            ]
        )

    def test_mistakes_are_for_the_cell_to_show(self):
        for code in ("done", "fi; echo", ")", "if; fi", "echo a; )", "( EOF ) unexpected"):
            with self.subTest(code=code):
                self.assertEqual(self.sh.ask("c", code), COMPLETE)

    def test_asking_runs_nothing_and_leaves_nothing(self):
        self.check("x=1; set -u")
        self.assertEqual(self.sh.ask("c", "echo loud; x=2; exit 3; touch /tmp/cove-asked"), COMPLETE)
        self.assertEqual(self.sh.ask("c", "x=3\n}; x=4; {"), COMPLETE)
        self.assertEqual(self.sh.ask("c", "exec 9>&- 230>&-"), COMPLETE)
        self.check("echo $x; case $- in *u*) echo set;; esac", "1\nset\n")
        self.assertFalse(os.path.exists("/tmp/cove-asked"))

    def test_cells_may_have_broken_everything(self):
        self.check("printf() { echo no; }; read() { :; }; set -e -u -f; IFS=x")
        self.assertEqual(self.sh.ask("c", "if true"), OPEN)
        self.assertEqual(self.sh.ask("c", "true"), COMPLETE)
        self.check("echo on", "on\n")

    def test_after_an_exit_the_shell_still_answers(self):
        self.check("exit 3", status=3)
        self.assertEqual(self.sh.ask("c", "if true"), OPEN)
        self.check("true")


class BashSyntax(Case):
    only = ("bash",)

    def test_what_only_bash_knows(self):
        for code, expected in [
            ("a=(1 2", OPEN),
            ("a=(1 2)", COMPLETE),
            ("[[ $x == a &&", OPEN),
            ("[[ $x == a ]] && echo b", COMPLETE),
            ("((x = 1 << 2))", COMPLETE),
            ("function f {", OPEN),
            ("cat <<< word", COMPLETE),
            ("for ((i = 0; i < 3; i++)); do echo $i; done", COMPLETE),
        ]:
            with self.subTest(code=code):
                self.assertEqual(self.sh.ask("c", code), expected)

    def test_the_options_of_the_session_hold(self):
        self.check("shopt -s extglob")
        self.assertEqual(self.sh.ask("c", "if [[ a == !(b|c) ]]; then"), OPEN)

    def test_variables(self):
        self.check("colour_one=1 colour_two=2")
        self.assertEqual(self.sh.ask("n", "echo $colour_"), "colour_one\ncolour_two")
        self.assertEqual(self.sh.ask("n", 'echo "${colour_o'), "colour_one")


class Completions(Case):
    def test_files_and_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("notes.txt", "notes two", "no;te", "nö", "-n"):
                open(os.path.join(folder, name), "w").close()
            os.mkdir(os.path.join(folder, "nothing"))
            self.check(f"cd {folder}; set -f")
            self.assertEqual(self.sh.ask("n", "cat no").split(), ["notes.txt", "nothing/"])
            self.assertEqual(self.sh.ask("n", f"cat {folder}/notes."), f"{folder}/notes.txt")
            self.assertEqual(self.sh.ask("n", "cat elsewhere"), "")
            self.check("echo *", "*\n")

    def test_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a-command-of-ours")
            open(path, "w").close()
            os.chmod(path, 0o755)
            self.check(f"PATH=$PATH:{folder}; IFS=:")
            for code in ("a-comm", "ls | a-comm", "x=$(a-comm", "true;\na-comm"):
                self.assertEqual(self.sh.ask("n", code), "a-command-of-ours", code)
            self.assertEqual(self.sh.ask("n", "echo a-comm"), "")
            self.assertEqual(self.sh.ask("n", "_cov"), "")

    def test_answers_are_bounded(self):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(700):
                open(os.path.join(folder, f"file-{number}"), "w").close()
            open(os.path.join(folder, "file-" + 70 * "x"), "w").close()
            self.check(f"cd {folder}")
            self.assertEqual(len(self.sh.ask("n", "cat f").split()), 500)


each(globals())

if __name__ == "__main__":
    unittest.main()
