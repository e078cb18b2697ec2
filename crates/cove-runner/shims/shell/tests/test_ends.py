"""Cells that do not complete: exits, errors, interrupts, and those that end the shell."""

import tempfile
import time
import unittest
from pathlib import Path

from driver import FRESH, PATIENCE, Case, Ended, each

BASHES = ("bash", "posix")
LASTING = ("bash", "posix")


class Exits(Case):
    only = LASTING

    def test_exit(self):
        self.check("x=1; exit 3; echo no", status=3)
        self.check("echo $x; exit", "1\n")
        self.check("false; exit", status=1)
        self.check("echo $x; exit 0; echo no", "1\n")
        self.check("exit 08", status=8)
        self.check("exit 256")
        self.check("echo $x", "1\n")

    def test_exit_is_deep(self):
        self.check(
            "x=glob; f() { local x=f; while :; do eval 'exit 4'; done >/dev/null; }; g() { local x=g; f; }"
        )
        self.check("if g; then echo no; fi; echo no", status=4)
        self.check("echo $x", "glob\n")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "lib").write_text("exit 5\necho no\n")
            self.check(f". {folder}/lib; echo no", status=5)
            self.check(f"g && {{ echo no; }} >{folder}/made; echo no >{folder}/made", status=4)
            self.check(f"ls {folder}", "lib\n")
        self.check("echo $x", "glob\n")

    def test_exit_in_subshells(self):
        self.check("(exit 3); echo $?; x=$(exit 4); echo $?; exit 5 | cat; echo $?", "3\n4\n0\n")
        self.check("(false; exit); echo $?; (exit 300); echo $?", "1\n44\n")
        self.check("f() { exit 6; }; (f; echo no); echo $?; f & wait $!; echo $?", "6\n6\n")
        self.check("(trap 'echo bye' EXIT; exit 7); echo $?", "bye\n7\n")

    def test_errexit(self):
        self.check("x=1; set -e; false; echo no", status=1)
        self.check("echo $x; (exit 9); echo no", "1\n", status=9)
        self.check("f() { local x=2; false; echo no; }; y=2; f", status=1)
        self.check(
            "echo $y; case $- in *e*) echo still;; esac; if f; then echo yes; fi",
            "2\nstill\nno\nyes\n",
        )
        self.check("set +e; false; echo on", "on\n")

    def test_scopes(self):
        """The local variables of a function end with it, however it ends."""
        self.check("x=glob")
        for code in (
            "set -eu; f() { local x=f; echo $nope; }; if f; then :; fi",
            "set -eu; f() { local x=f; eval 'echo $nope'; }; g() { local x; f || :; }; g || :",
            "set -e; f() { local x=f; eval false; }; f",
            "f() { local x=f; command exit 5; }; f",
            "f() { local x=f; exit 5; }; if eval f; then :; fi",
        ):
            with self.subTest(code=code):
                self.assertEqual(self.sh.run(code).kind, "x")
                self.check("set +eu; echo $x; declare y=1", "glob\n")
                self.check("set -e; false", status=1)
                self.check("set +e; echo $x $y; unset y", "glob 1\n")
        self.ends("f() { local x=f; command exit 5; }; if eval f; then :; fi", 5)

    def test_many(self):
        for n in range(25):
            self.check(f"n={n}; set -e; false", status=1)
            self.check(f"echo $n; exit {n}", f"{n}\n", status=n)
        # Only one process is left.
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and len(self.group()) > 1:
            self.sh.ended()
        self.assertEqual(len(self.group()), 1)

    def group(self):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if fields[2] == str(self.sh.group) and fields[0] != "Z":
                found.append(entry.name)
        return found

    def test_exit_trap_waits_for_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(f"t={folder}/bye; trap 'echo $x >$t' EXIT; x=1; exit 2", status=2)
            self.check("x=2; ls $t", status=2, err=None)
            self.sh.socket.shutdown(2)
            deadline = time.monotonic() + PATIENCE
            while not self.sh.ended() and time.monotonic() < deadline:
                time.sleep(0.001)
            self.assertEqual(Path(folder, "bye").read_text(), "2\n")

    def test_traps(self):
        self.check(
            "trap 'echo usr1' USR1; me=$(sh -c 'echo $PPID'); kill -USR1 ${BASHPID-$$}; true",
            "usr1\n",
        )
        self.check("kill -USR1 ${BASHPID-$$}; true", "usr1\n")
        if self.shell in BASHES:
            self.check("exit 3", status=3)
            self.check("kill -USR1 $BASHPID; true", "usr1\n")
        self.check("trap - USR1; trap '' TERM; kill -TERM ${BASHPID-$$}; echo alive", "alive\n")

    def test_end_of_channel(self):
        self.sh.run("x=1")
        self.sh.socket.shutdown(2)
        deadline = time.monotonic() + PATIENCE
        while not self.sh.ended():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)


class Errors(Case):
    only = LASTING

    def test_errors(self):
        self.check("x=1; readonly fixed=1")
        bash = self.shell in BASHES
        for code in (
            "if then",
            "echo 'never closed",
            'echo "never closed\n',
            "echo $(",
            "case x in",
            "for",
            "}",
            "echo ${nope?message}",
            "fixed=2; true && echo no",
            "f() { echo ${nope:?}; }; f; echo no",
            "echo ${x!y}; echo no",
            "echo $((1/0)); echo no",
        ):
            with self.subTest(code=code):
                done = self.sh.run(code)
                self.assertEqual(done.kind, "x", done)
                self.assertNotIn("no\n", done.out)
                self.assertNotEqual(done.err, "")
                self.check("echo $x", "1\n")
        for code in (
            ". /nonexistent",
            "shift 99",
            "export a-b=1",
            ": </nonexistent",
            "set -o nosuch",
        ):
            with self.subTest(code=code):
                done = self.sh.run(code)
                self.assertEqual(done.kind, "x", done)
                self.check("echo $x", "1\n")
        self.check("if then", status=2, err=None)
        self.check("set -u; echo $nope; echo no", status=1 if bash else 2, err=None)
        self.check("echo $x", "1\n")

    def test_errors_in_subshells(self):
        """None of these subshells may go on as the session's shell."""
        self.check("(: ${nope?x}; echo no); echo a", "a\n", err=None)
        self.check(
            "x=$(eval 'if then'; echo b); echo c; (. /nonexistent; echo d) >/dev/null; echo e",
            "c\ne\n",
            err=None,
        )
        self.check(
            "(: ${nope?x}) | cat; (: ${nope?x}) & wait $! && echo no; echo f", "f\n", err=None
        )
        self.check("echo g", "g\n")

    def test_break_and_return(self):
        for code in ("break", "continue", "break 7", "return 0", "while :; do break 5; done"):
            with self.subTest(code=code):
                self.assertIn(self.sh.run(f"x=1; {code}").kind, "cx")
                self.check("echo $x", "1\n")


class Interrupts(Case):
    only = LASTING

    def interrupt(self, code, until=b"go\n", settle=0.0):
        self.sh.start(code)
        if until:
            self.sh.finish(until=until)
        time.sleep(settle)
        self.sh.interrupt()
        done = self.sh.finish()
        self.assertEqual((done.kind, done.out, done.err), ("i", "", ""), done)
        self.check("echo $x", "1\n")

    def test_interrupt(self):
        self.check("x=1")
        self.interrupt("echo go; while :; do :; done; echo no")
        self.interrupt("echo go; sleep 60; echo no", settle=0.05)
        self.interrupt(
            "f() { local x=2; echo go; while :; do sleep 60; done; echo no; }; f", settle=0.05
        )
        self.interrupt("echo go; sleep 60 | cat; echo no", settle=0.05)
        self.interrupt("echo go; y=$(sleep 60); echo no", settle=0.05)
        self.interrupt("echo go; (while :; do :; done); echo no", settle=0.05)
        self.interrupt("echo go; eval 'sleep 60 || sleep 60'; echo no", settle=0.05)
        self.interrupt("echo go; read y; echo no", settle=0.05)
        self.interrupt("set -eu; echo go; for i in 1 2 3; do sleep 60; done; echo no", settle=0.05)

    def test_between_cells(self):
        self.check("x=1")
        for _ in range(3):
            self.sh.interrupt()
            time.sleep(0.01)
        self.check("echo $x", "1\n")

    def test_children_get_interrupts(self):
        self.check("grep SigIgn /proc/self/status | tail -c 2", "0\n")

    def test_a_trap_of_the_cell(self):
        self.sh.start("x=1; trap 'echo caught' INT; echo go; sleep 60; echo after")
        self.sh.finish(until=b"go\n")
        time.sleep(0.05)
        self.sh.interrupt()
        done = self.sh.finish()
        self.assertEqual((done.kind, done.out), ("c", "caught\nafter\n"))
        self.interrupt("echo go; sleep 60", settle=0.05)

    def test_ignored(self):
        self.sh.start("trap '' INT; echo go; sleep 0.2; echo after; x=1")
        self.sh.finish(until=b"go\n")
        self.sh.interrupt()
        done = self.sh.finish()
        self.assertEqual((done.kind, done.out), ("c", "after\n"))
        self.interrupt("echo go; while :; do :; done")


class Hostile(Case):
    def test_redefined(self):
        names = "printf read command builtin kill true false test echo head declare"
        for name in names.split():
            self.check(f"{name}() {{ :; }}; x=1")
        self.check("exit 3", status=3)
        self.assertEqual(self.sh.run("cat <<E\n$x\nE").out, "1\n")

    def test_path(self):
        self.check("PATH=; x=" + "y" * 20000)
        self.check("echo ${#x}; exit 2", "20000\n", status=2)
        self.check(": " + "y" * 20000 + "; echo $#", "0\n")

    def test_unset_all(self):
        self.check("TMOUT=1; unset PATH HOME PWD OLDPWD PS4; POSIXLY_CORRECT=1; x=1")
        time.sleep(1.1)
        self.check("echo $x; exit 3", "1\n", status=3)
        self.check("unset POSIXLY_CORRECT; echo $x", "1\n")

    def test_noexec(self):
        self.ends("set -n; echo no", 0)

    def test_killed(self):
        self.ends("kill -9 $$", -9)

    def test_replaced(self):
        self.ends("exec sh -c 'exit 5'", 5)

    def test_exec_of_nothing(self):
        if self.shell in BASHES:
            self.ends("exec /nonexistent", 127)

    def test_ulimit(self):
        if self.shell == "busybox":
            self.skipTest("busybox itself loops when it cannot restore a descriptor")
        try:
            self.sh.run("ulimit -n 3; x=1")
            done = self.sh.run("echo $x")
            self.assertIn(done.kind, "cx")
        except Ended:
            pass

    def test_closed(self):
        """A cell that closes every descriptor it can name."""
        self.sh.run("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-")
        self.check("echo on", "on\n")

    def test_channel_closed(self):
        if self.shell in BASHES:
            self.sh.start("exec 230>&-; echo hi")
            with self.assertRaises(Ended):
                self.sh.finish()

    def test_background_holds_nothing(self):
        self.check("sleep 60 & (sleep 60; :) & echo on", "on\n")
        self.ends("kill -9 $$", -9)

    def test_busy(self):
        self.check("i=0; while [ $i -lt 10000 ]; do i=$((i + 1)); done; echo $i", "10000\n")


class Fresh(Case):
    """Shells with a process for each cell, which ends with the cell's status."""

    only = FRESH

    def test_ends(self):
        self.check("x=1; exit 3; echo no", status=3)
        self.check("echo $x; exit", "1\n")
        self.check("false; exit", status=1)
        self.check("x=2; f() { exit 4; }; if f; then :; fi; echo no", status=4)
        self.check("echo $x; exit 0; echo no", "2\n")
        self.check("(exit 3); echo $?; x=$(exit 4); echo $?; exit 5 | cat; echo $?", "3\n4\n0\n")
        self.check("(trap 'echo bye' EXIT; exit 7); echo $?", "bye\n7\n")
        self.check("x=3; set -e; false; echo no", status=1)
        self.check("echo $x; (exit 9); echo no", "3\n", status=9)
        self.check("set +e; false; echo on", "on\n")
        self.check("x=4; set -u; echo $nope; echo no", status=2, err=None)
        self.check("set +u; echo $x", "4\n")
        self.check("command exit 6", status=6)
        self.check("\\exit 7", status=7)

    def test_errors(self):
        self.check("x=1; readonly fixed=1")
        for code in ("if then", "echo 'never closed", "for", "echo ${nope?message}", "fixed=2; true"):
            with self.subTest(code=code):
                done = self.sh.run(code)
                self.assertEqual((done.code, done.out), (2, ""), done)
                self.assertNotEqual(done.err, "")
                self.check("echo $x", "1\n")
        self.check("(: ${nope?x}; echo no); echo a", "a\n", err=None)
        self.check("x=2\nif then", status=2, err=None)
        self.check("echo $x", "2\n")
        self.assertEqual(self.sh.run("exec /nonexistent").code, 127)
        self.check("echo $x", "2\n")

    def test_interrupt(self):
        self.check("x=1")
        for code in (
            "while :; do :; done",
            "sleep 60",
            "sleep 60 | cat",
            "y=$(sleep 60)",
            "(while :; do :; done)",
            "set -eu; for i in 1 2 3; do sleep 60; done",
        ):
            with self.subTest(code=code):
                self.sh.start(f"x=$((x + 1)); echo go; {code}; echo no")
                self.sh.finish(until=b"go\n")
                time.sleep(0.05)
                self.sh.interrupt()
                try:
                    done = self.sh.finish(patience=2)
                except AssertionError:
                    # It came before the program that the shell waits for. The session interrupts twice, too.
                    self.sh.interrupt()
                    done = self.sh.finish()
                self.assertEqual((done.kind, done.out, done.err), ("i", "", ""), done)
                self.sh.interrupt()
        self.check("echo $x", "7\n")
        self.check("grep SigIgn /proc/self/status | tail -c 2", "0\n")

    def test_traps(self):
        self.check("trap 'echo usr1' USR1; kill -USR1 $$; true", "usr1\n")
        self.check("trap 'echo bye $?' EXIT; exit 3", "bye 3\n", status=3)
        self.check("trap 'echo bye' EXIT; trap - EXIT; trap '' TERM; kill -TERM $$; echo on", "on\n")
        self.sh.start("x=1; trap 'echo caught' INT; echo go; sleep 60; echo after")
        self.sh.finish(until=b"go\n")
        time.sleep(0.05)
        self.sh.interrupt()
        self.assertEqual((self.sh.finish().out), "caught\nafter\n")
        self.check("echo $x", "1\n")

    def test_state_that_is_lost_is_no_success_of_the_shell(self):
        """These never reach the EXIT trap: the shell has ended without its state, with the status that it has."""
        for code, status in (
            ("trap 'exit 8' EXIT; exit 3", 8),
            ("command trap - EXIT; exit 3", 3),
            ("kill -15 $$", -15),
            ("exec sh -c 'exit 6'", 6),
        ):
            with self.subTest(code=code):
                self.sh = self.new()
                self.ends(code, status)


each(globals())

if __name__ == "__main__":
    unittest.main()
