"""Cells that complete, and the state that stays from one to the next."""

import os
import tempfile
import unittest
from pathlib import Path

from driver import FRESH, PATIENCE, Case, each


class Text(Case):
    """Code, name and arguments arrive as they were sent."""

    def test_exact(self):
        for text in (
            "",
            "\n",
            "\n\n  x\n\n",
            "back\\slash\\\\ \\n %s %% 'single' \"double\" `tick` $dollar !bang",
            "\t tab, \r carriage\r\n return, é, ☃, 😀, \x01 \x02 \x1b \x1e \x1f \x7f",
            "-n",
            "*",
            "#!/bin/sh",
        ):
            with self.subTest(text=text):
                done = self.sh.run("printf '[%s]' \"$@\"", args=(text, "end"))
                self.assertEqual(done.out, f"[{text}][end]", done)
                self.sh.run(f"cat <<'E O F'\n{text}\nE O F\n")
                quoted = "'" + text.replace("'", "'\\''") + "'"
                done = self.sh.run(f"printf %s {quoted}")
                self.assertEqual(done.out, text, done)

    def test_odd_code(self):
        self.check("")
        self.check("\n\n")
        self.check("# only a comment")
        self.check("#!/bin/sh\necho hi # no newline", "hi\n")
        self.check("echo a\\\nb", "ab\n")
        self.check("x=1 # ends in a backslash \\")
        done = self.sh.run("cat <<X\nnever closed")
        self.assertEqual(done.out.rstrip(), "never closed")
        self.check("echo ok", "ok\n")

    def test_arguments(self):
        self.check('echo "$# $1,$2"', "2 a b,c'd\n", args=("a b", "c'd"))
        self.check('echo "$#"; set -- x y', "0\n")
        self.check('echo "$#"', "0\n")

    def test_large(self):
        body = "".join(f"echo line number {n} of this cell >/dev/null\n" for n in range(23000))
        code = f"x='{'y' * 100}'\nif false; then\n{body}fi\necho ${{#x}}"
        self.assertGreater(len(code), 1_000_000)
        self.check(code, "100\n", patience=3 * PATIENCE)
        word = "é\n" * 300_000
        done = self.sh.run(f"x='{word}'; printf %s \"$x\" | wc -c")
        self.assertEqual(done.out.strip(), "900000", done)

    def test_many_lines(self):
        self.check("\n".join(f"n={n}" for n in range(10000)) + "\necho $n", "9999\n")


class State(Case):
    def test_variables(self):
        self.check("x='a  b'; export y=2; readonly z=3; unset nothing")
        self.check('echo "$x" $y $z; sh -c \'echo "[$x][$y]"\'', "a  b 2 3\n[][2]\n")

    def test_places(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(f"cd {folder}; umask 077")
            self.check("pwd; umask; cd /; echo $OLDPWD", f"{folder}\n0077\n{folder}\n")
            self.check("echo $OLDPWD; cd - >/dev/null; pwd", f"{folder}\n{folder}\n")

    def test_a_directory_that_is_gone(self):
        self.check("cd $(mktemp -d); x=1")
        done = self.sh.run('echo "$x"; rmdir "$PWD"')
        self.assertEqual((done.code, done.out), (0, "1\n"))
        done = self.sh.run("echo $x; cd /; echo on")
        self.assertEqual((done.code, done.out), (0, "1\non\n"))
        if self.shell in FRESH:
            self.assertEqual(done.err, "note: the directory of the cell before is gone\n")

    def test_every_kind_of_value(self):
        odd = "a'b\"c\\d $e `f` \t\r\n\n*\x01\x1b\x7f" + "".join(map(chr, range(1, 32))) + "é☃"
        quoted = "'" + odd.replace("'", "'\\''") + "'"
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "value").write_text(odd + ".")
            self.check(f"x=$(cat {folder}/value); x=${{x%.}}; export x; y='-n'; z=")
            self.check('printf %s. "$x"', odd + ".")
            self.check("printf '[%s]' \"$y\" \"${z-unset}\" \"${w-unset}\"", "[-n][][unset]")
            self.check(f"mkdir {folder}/{quoted[:8]}'; cd {folder}/{quoted[:8]}'; x=1")
            self.check("printf %s \"${PWD##*/}\"", odd[: len(quoted[:8]) - 4])

    def test_what_a_cell_unsets_stays_unset(self):
        self.check("unset PATH HOME PS4 OLDPWD; export -p >/dev/null")
        self.check('echo "${PATH-none} ${HOME-none} ${OLDPWD-none}"', "none none none\n")

    def test_readonly_variables(self):
        if self.shell in FRESH:
            self.check("readonly IFS OLDPWD OPTIND")
        self.check("readonly PATH; readonly r='a b'; export e=1; readonly e")
        done = self.sh.run("echo $r $e; r=2; echo no")
        self.assertEqual((done.out, done.kind), ("a b 1\n", "x"), done)
        self.check("sh -c 'echo [$r$e]'", "[1]\n")

    def test_options(self):
        self.check("set -f; set -C; set -u")
        self.check("echo *; case $- in *u*) echo u;; esac", "*\nu\n")

    def test_allexport_exports_no_variable_of_the_shim(self):
        self.check("set -a; x=1")
        self.check("y=2; env | grep -c _cove; env | grep '^[xy]=' | sort", "0\nx=1\ny=2\n")
        self.check("set +a; z=3; env | grep '^z='", status=1)
        self.check(": '" + "k" * 200_000 + "'; env >/dev/null && echo ran", "ran\n")

    def test_trace(self):
        done = self.sh.run("set -x; echo a")
        self.assertRegex(done.err, r"^\++ echo a\n$")
        done = self.sh.run("echo b")
        self.assertRegex(done.err, r"^\++ echo b\n$")
        self.sh.run("{ set +x; } 2>/dev/null")
        self.check("echo c", "c\n")
        self.check("set -v")
        self.sh.run("echo d\necho e")
        self.sh.run("set +v")
        self.check("echo f", "f\n")

    def test_separators(self):
        self.check("IFS=0123456789ceot_")
        self.check(
            'set -- a0b; echo "$1"; x=axbxc; IFS=x; set -- $x; echo "$3"; exit 7',
            "a0b\nc\n",
            status=7,
        )
        self.check('printf "%s" "$IFS"', "x")
        self.check("unset IFS")
        self.check("x='a b'; set -- $x; echo $#\necho ${IFS-unset}", "2\nunset\n")

    def test_redirections_last_for_a_cell(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(f"exec >{folder}/out 2>&1 </dev/null; echo hidden")
            self.check(f"echo seen; cat {folder}/out", "seen\nhidden\n")
            self.check("exec >/dev/null 2>&1")
            self.check("echo seen; echo also >&2", "seen\n", "also\n")
            self.check("exec >&- 2>&- <&-")
            self.check("echo seen; echo also >&2", "seen\n", "also\n")

    def test_descriptors(self):
        """Programs that a cell starts get neither the channel nor the shim's copies of descriptors."""
        self.check("exec 3>&- 2>/dev/null; ls /proc/self/fd", "0\n1\n2\n3\n")
        self.sh.run("set -e; false")
        self.sh.run("set +e")
        self.check("ls /proc/self/fd", "0\n1\n2\n3\n")

    def test_input(self):
        os.write(self.sh.stdin, b"one\ntwo\nthree\n")
        self.check('read x; echo "$x"', "one\n")
        self.check('read x; echo "$x"', "two\n")
        self.check("head -n 1", "three\n")

    def test_status(self):
        self.check("true")
        self.check("false", status=1)
        self.check("(exit 42)", status=42)
        self.assertEqual(self.sh.run("sh -c 'kill -9 $$'").code, 137)
        self.check("nosuchcommand", err=None, status=127)
        self.check("! true", status=1)
        self.check("false; true")

    def test_background(self):
        self.check("sleep 60 & p=$!; echo started", "started\n")
        self.check("kill $p && echo on", "on\n")

    def test_order(self):
        self.check(
            'for i in 1 2 3; do echo $i; sh -c "echo $i.5"; done', "1\n1.5\n2\n2.5\n3\n3.5\n"
        )


class Fresh(Case):
    """Each cell is a new process: what does not last, and that it says so."""

    only = FRESH

    def test_functions_aliases_and_traps_end(self):
        self.check("f() { echo f; }; alias greet='echo hello'; x=1; trap 'echo bye $x' EXIT", "bye 1\n")
        for name in ("f", "greet"):
            done = self.sh.run(f"echo $x; {name}")
            self.assertEqual((done.code, done.out), (127, "1\n"))
            self.assertIn("not found\nnote: each cell is a new sh here: it keeps variables", done.err)

    def test_options(self):
        self.check("set -eC; if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi")
        self.check("case $- in *e*C* | *C*e*) echo both;; esac; set +C", "both\n")
        self.check("case $- in *C*) echo no;; *e*) echo e;; esac", "e\n")


class Lasting(Case):
    only = ("bash", "posix")

    def test_more_than_variables(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(f'alias greet="echo hello"; f() {{ echo "f $1"; }}; exec 4>{folder}/four; sleep 60 &')
            self.check(f"greet you; f 1; echo four >&4; cat {folder}/four", "hello you\nf 1\nfour\n")
            self.assertEqual(self.sh.run("kill $!; wait $!").code, 143)


class Bash(Case):
    only = ("bash", "posix")

    def test_declared(self):
        self.check(
            "declare -A m=([a]=b); declare -a l=(1 2 3); declare -i n=3; typeset t=4; declare -r r=5"
        )
        self.check("n=n+1; echo ${m[a]} ${l[2]} $n $t $r", "b 3 4 4 5\n")
        self.check("local x=1", status=1, err=None)

    def test_name_and_lines(self):
        self.check('echo "$0 $LINENO"\n\necho $LINENO', "job.sh 1\n3\n", name="job.sh")
        self.check(
            "\nnosuch", err="job.sh: line 2: nosuch: command not found\n", status=127, name="job.sh"
        )

    def test_shopts(self):
        self.check("shopt -s extglob nullglob failglob nocasematch; set -o pipefail")
        self.check("case A in a) echo same;; esac; false | true", "same\n", status=1)
        self.check("set -E -T -B; x=abc; echo ${x/@(a|b)/-}", "-bc\n")

    def test_debug_trap_lasts_for_a_cell(self):
        self.assertEqual(set(self.sh.run("trap 'echo d' DEBUG; true").out), {"d", "\n"})
        self.check("true")

    def test_error_trap(self):
        done = self.sh.run("trap 'echo failed $?' ERR; (exit 3); true")
        self.assertEqual(done.out, "failed 3\n")


each(globals())

if __name__ == "__main__":
    unittest.main()
