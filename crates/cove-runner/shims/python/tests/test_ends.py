"""Cells that do not complete: errors, exits, forks, interrupts."""

import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

from driver import VERSION, Case, Ended


class Errors(Case):
    def test_first_expression(self):
        marks = "    ~^~\n" if VERSION >= (3, 11) else ""
        self.check(
            "1/0",
            err="Traceback (most recent call last):\n"
            f'  File "<cell 1>", line 1, in <module>\n    1/0\n{marks}'
            "ZeroDivisionError: division by zero\n",
            kind="r",
        )

    def test_traceback(self):
        self.check("def f():\n    return {}['é']", name="lib.py")
        done = self.raises("x = 1\nf()", "KeyError", "'é'")
        marks = "    ~~^^^^^\n" if VERSION >= (3, 11) else ""
        calls = "    f()\n" + ("    ~^^\n" if VERSION >= (3, 13) else "")
        self.assertEqual(
            done.err,
            "Traceback (most recent call last):\n"
            f'  File "<cell 2>", line 2, in <module>\n{calls}'
            f"  File \"lib.py\", line 2, in f\n    return {{}}['é']\n"
            + (f"           {marks[4:]}" if marks else "")
            + "KeyError: 'é'\n",
        )

    def test_chained(self):
        done = self.raises(
            """
            try:
                {}["a"]
            except KeyError as e:
                raise ValueError("b") from e
            """,
            "ValueError",
        )
        self.assertIn("The above exception was the direct cause", done.err)
        done = self.raises("try:\n    {}['a']\nexcept KeyError:\n    1/0", "ZeroDivisionError")
        self.assertIn("During handling of the above exception, another", done.err)
        self.assertIn("File \"<cell 2>\", line 2, in <module>\n    {}['a']\n", done.err)
        done = self.raises("1/0", "ZeroDivisionError")
        self.assertNotIn("During handling", done.err)

    @unittest.skipIf(VERSION < (3, 11), "ExceptionGroup came with 3.11")
    def test_group(self):
        done = self.raises(
            "raise ExceptionGroup('many', [ValueError(1), TypeError('x' * 300000)])",
            "ExceptionGroup",
            "many (2 sub-exceptions)",
        )
        self.assertIn("+---------------- 1 ----------------", done.err)
        self.assertIn("| ValueError: 1", done.err)
        self.assertLess(len(done.err), 100_000)

    def test_syntax(self):
        done = self.raises("x = 1\nx = = 2\n", "SyntaxError", "invalid syntax (<cell 1>, line 2)")
        self.assertEqual(
            done.err,
            '  File "<cell 1>", line 2\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n',
        )
        done = self.raises("x = 1\nreturn 5", "SyntaxError")
        self.assertIn('  File "<cell 2>", line 2\n    return 5\n', done.err)
        done = self.raises("eval('1 +')", "SyntaxError")
        self.assertIn('File "<cell 3>", line 1, in <module>', done.err)
        self.raises("if x:\nx", "IndentationError")
        self.raises("x", "NameError")

    def test_syntax_in_first_cell(self):
        done = self.raises("1 +", "SyntaxError", "invalid syntax (<cell 1>, line 1)")
        self.assertNotIn("Traceback", done.err)
        done = self.raises("eval('1 +')", "SyntaxError", shim=self.new())
        self.assertIn('File "<cell 1>", line 1, in <module>', done.err)

    def test_recursion(self):
        done = self.raises("def f():\n    f()\nf()", "RecursionError")
        self.assertIn("[Previous line repeated 9", done.err)
        done = self.raises(
            "import sys\nsys.setrecursionlimit(9000)\n"
            "def f(n):\n    g(n)\ndef g(n):\n    f(n - 1) if n else 1/0\nf(2500)",
            "ZeroDivisionError",
        )
        self.assertLess(len(done.err), 200_000)
        self.check("sys.setrecursionlimit(1000)\n1", "1\n")

    def test_str_raises(self):
        done = self.raises(
            "class E(Exception):\n    def __str__(self):\n        1/0\nraise E",
            "E",
            "<exception str() failed>",
        )
        self.assertIn(
            "E: <exception str() failed>\n" if VERSION >= (3, 11) else "E: <unprintable", done.err
        )

    def test_names(self):
        self.raises("import json\njson.loads('{')", "json.decoder.JSONDecodeError")
        self.raises("class A:\n    class E(Exception): pass\nraise A.E('x')", "A.E", "x")
        self.raises("E = type('E', (Exception,), {'__module__': 5})\nraise E", "5.E")
        self.raises(
            "import asyncio\nraise asyncio.CancelledError", "asyncio.exceptions.CancelledError"
        )

    def test_caps(self):
        done = self.raises("raise ValueError('é' * 3000)", "ValueError", "é" * 2048)
        done = self.raises("raise ValueError('x' + 'é' * 3000)", "ValueError", "x" + "é" * 2047)
        done = self.raises("raise ValueError('a' * 50_000_000 + 'z')", "ValueError", "a" * 4096)
        self.assertLess(len(done.err), 70_000)
        self.assertIn("characters left out", done.err)
        self.assertTrue(done.err.endswith("aaz\n"))
        done = self.raises(
            "raise type('N' * 9000, (Exception,), {})('\\ud800')", "N" * 4096, "\\ud800"
        )

    def test_long_line(self):
        code = (
            "def f(n): "
            + "x = 1; " * 20000
            + "return g(n)\ndef g(n): return f(n - 1) if n else 1/0\nf(100)"
        )
        done = self.raises(code, "ZeroDivisionError")
        self.assertLess(len(done.err), 100_000)

    def test_hook_of_the_user(self):
        self.check(
            "import sys\nsys.excepthook = lambda t, v, tb: print(t.__name__, v, tb.tb_lineno)"
        )
        self.raises("pass\n1/0", "ZeroDivisionError")
        done = self.shim.run("pass\n1/0")
        self.assertEqual((done.out, done.err), ("ZeroDivisionError division by zero 2\n", ""))
        self.check("def bad(*a):\n    raise ValueError('in hook')\nsys.excepthook = bad")
        done = self.raises("pass\n1/0", "ZeroDivisionError")
        self.assertIn("Error in sys.excepthook:\nTraceback", done.err)
        self.assertIn("ValueError: in hook\n\nOriginal exception was:\nTraceback", done.err)
        self.assertTrue(done.err.endswith("ZeroDivisionError: division by zero\n"))
        self.check("sys.excepthook = lambda *a: sys.exit(9)")
        self.assertEqual(self.shim.run("pass\n1/0").code, 9)
        self.check("del sys.excepthook")
        self.assertIn("ZeroDivisionError", self.raises("pass\n1/0", "ZeroDivisionError").err)

    def test_hook_can_be_interrupted(self):
        self.check(
            """
            import sys, time
            def slow(*a):
                print("in")
                time.sleep(60)
            sys.excepthook = slow
            """
        )
        self.shim.start("pass\n1/0")
        self.shim.finish(until=b"in\n")
        self.shim.interrupt()
        self.assertEqual(self.shim.finish().kind, "i")

    def test_stderr_is_gone(self):
        for code in ("sys.stderr.close()", "sys.stderr = 5", "sys.stderr = None", "del sys.stderr"):
            with self.subTest(code=code):
                shim = self.new()
                done = self.raises(f"import sys\n{code}\n1/0", "ZeroDivisionError", shim=shim)
                self.assertIn("ZeroDivisionError: division by zero\n", done.err)
        self.check("import sys, io\nreal = sys.stderr\nsys.stderr = io.StringIO()")
        self.assertEqual(self.raises("pass\n1/0", "ZeroDivisionError").err, "")
        self.check("'ZeroDivisionError' in sys.stderr.getvalue()", "True\n")

    def test_own_tracebacks_have_source(self):
        done = self.shim.run(
            "import traceback\ntry:\n    1/0  # here\nexcept Exception:\n    traceback.print_exc()"
        )
        self.assertIn("    1/0  # here\n", done.err)
        self.check("def f():\n    return 'source'\n")
        self.check(
            "import inspect\nprint(inspect.getsource(f))", "def f():\n    return 'source'\n\n"
        )

    def test_sources_are_bounded(self):
        self.check("def old():\n    1/0  # old")
        self.raises("old()", "ZeroDivisionError")
        for _ in range(9):
            self.check("pass\n#" + "x" * 1_000_000)
        self.check("def new():\n    1/0  # new")
        self.assertNotIn("# old", self.raises("old()", "ZeroDivisionError").err)
        self.assertIn("# new", self.raises("new()", "ZeroDivisionError").err)

    def test_error_is_freed(self):
        self.check("import gc, weakref\ngc.disable()\nclass A: pass")
        self.raises(
            "def f():\n    a = A()\n    global r\n    r = weakref.ref(a)\n    1/0\nf()",
            "ZeroDivisionError",
        )
        self.check("print(r())", "None\n")

    def test_memory(self):
        done = self.raises(
            """
            import resource
            def f():
                resource.setrlimit(resource.RLIMIT_AS, (400 << 20, resource.RLIM_INFINITY))
                hog = [bytes(1 << 20) for _ in range(9999)]
            f()
            """,
            "MemoryError",
        )
        self.assertIn("MemoryError", done.err)
        self.check("print('alive')", "alive\n")


class Exits(Case):
    def test_codes(self):
        for code, status, err in (
            ("sys.exit()", 0, ""),
            ("sys.exit(0)", 0, ""),
            ("sys.exit(7)", 7, ""),
            ("sys.exit(-1)", 255, ""),
            ("sys.exit(256)", 0, ""),
            ("sys.exit(1 << 70)", 255, ""),
            ("sys.exit(True)", 1, ""),
            ("exit()", 0, ""),
            ("quit(3)", 3, ""),
            ("raise SystemExit('text é')", 1, "text é\n"),
            ("raise SystemExit(1, 2)", 1, "(1, 2)\n"),
            ("raise SystemExit", 0, ""),
            ("class S(SystemExit): pass\nraise S(2)", 2, ""),
        ):
            for shim in (self.shim, self.new()):
                with self.subTest(code=code):
                    if "sys." in code:
                        self.check("import sys\nkept = 1", shim=shim)
                    self.assertEqual(self.check(code, "", err, "x", shim=shim).code, status)
                    self.check("print('alive', input())", "alive line\n", shim=self.fed(shim))

    def fed(self, shim):
        os.write(shim.stdin, b"line\n")
        return shim

    def test_state_is_kept(self):
        self.check("import sys\nx = 5\nsys.exit(1)", kind="x")
        self.check("x", "5\n")

    def test_hard_exit(self):
        with self.assertRaises(Ended) as ended:
            self.shim.run("import os\nprint('a')\nos._exit(6)")
        self.assertEqual((ended.exception.status, ended.exception.out), (6, b"a\n"))

    def test_fork_falls_off_the_end(self):
        fork = "import os, sys\npid = os.fork()\n"
        wait = "if pid:\n    print(os.waitpid(pid, 0)[1] >> 8)\n"
        for end, status in (
            ("", 0),
            ("else:\n    sys.exit(4)", 4),
            ("else:\n    1/0", 1),
            ("else:\n    raise KeyboardInterrupt", 130),
        ):
            with self.subTest(end=end):
                done = self.shim.run(fork + wait + end)
                self.assertEqual((done.kind, done.out), ("c", f"{status}\n"), done)
                self.assertEqual("1/0" in done.err, "1/0" in end)
                self.check("print('parent')", "parent\n")

    def test_fork_in_a_library(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "spoon.py").write_text("import os\ndef part():\n    return os.fork()\n")
            for end, status in (("pass", 0), ("1/0", 1), ("sys.exit(4)", 4)):
                shim = self.new(cwd=folder)
                done = shim.run(
                    "import spoon, os, sys\npid = spoon.part()\n"
                    f"if pid:\n    print(os.waitpid(pid, 0)[1] >> 8)\nelse:\n    {end}"
                )
                self.assertEqual((done.kind, done.out), ("c", f"{status}\n"), done)
                self.check("1", "1\n", shim=shim)

    def test_fork_in_an_awaiting_cell(self):
        self.check(
            """
            import os, asyncio
            await asyncio.sleep(0)
            pid = os.fork()
            if pid:
                print(os.waitpid(pid, 0)[1])
            """,
            "0\n",
        )
        self.check("1", "1\n")


class Interrupts(Case):
    def interrupted(self, code, out=b"on\n", shim=None):
        shim = shim or self.shim
        shim.start(code)
        shim.finish(until=out)
        time.sleep(0.05)
        shim.interrupt()
        return shim.finish()

    def test_in_user_code(self):
        self.check("import time, sys, asyncio")
        for code in (
            "print('on', flush=True); time.sleep(60)",
            "print('on'); input()",
            "print('on')\nwhile True: pass",
            "print('on'); await asyncio.sleep(60)",
            "async def main():\n    print('on')\n    await asyncio.sleep(60)",
            "async def f():\n    print('on')\n    time.sleep(60)\nf()",
            "import subprocess\nprint('on'); subprocess.run(['sleep', '60'])",
            "print('on')\nasyncio.run(asyncio.sleep(60))",
            "import threading\nprint('on')\nthreading.Event().wait(60)",
        ):
            with self.subTest(code=code):
                done = self.interrupted(code)
                self.assertEqual(done.kind, "i", done)
                self.assertTrue(
                    done.err.endswith("KeyboardInterrupt\n") or "subprocess" in code, done
                )
                self.assertNotIn("in guard", done.err)
                if "await " in code:
                    self.assertNotIn("run_until_complete", done.err)
                self.check("print('next')", "next\n")

    def test_where(self):
        done = self.interrupted("import asyncio\nprint('on')\nawait asyncio.sleep(60)")
        self.assertIn(
            '  File "<cell 1>", line 3, in <module>\n    await asyncio.sleep(60)\n', done.err
        )
        self.assertNotIn("CancelledError", done.err)

    def test_first_expression(self):
        done = self.interrupted("[print('on', flush=True), input()]")
        self.assertEqual(done.kind, "i")
        self.assertIn('File "<cell 1>", line 1, in <module>', done.err)
        self.check("print('next')", "next\n")

    def test_finally_of_a_task(self):
        done = self.interrupted(
            "import asyncio\ntry:\n    print('on')\n    await asyncio.sleep(60)\n"
            "finally:\n    await asyncio.sleep(0)\n    print('end')"
        )
        self.assertEqual((done.kind, done.out), ("i", "end\n"))

    def test_caught(self):
        done = self.interrupted(
            "import time\ntry:\n    print('on')\n    time.sleep(60)\n"
            "except KeyboardInterrupt:\n    print('caught')"
        )
        self.assertEqual((done.kind, done.out), ("c", "caught\n"))

    def test_handler_of_the_user(self):
        self.check("import signal, time\nsignal.signal(2, lambda *a: print('mine'));")
        done = self.interrupted("print('on'); time.sleep(3)")
        self.assertEqual((done.kind, done.out), ("c", "mine\n"))
        self.check("signal.signal(2, signal.SIG_DFL);")
        self.assertEqual(self.interrupted("print('on'); time.sleep(60)").kind, "i")
        self.check("signal.getsignal(2) is signal.default_int_handler", "True\n")

    def test_between_cells(self):
        for warm in (False, True):
            shim = self.new()
            if warm:
                self.check("import time", shim=shim)
            else:
                self.check("1", "1\n", shim=shim)
            for _ in range(5):
                shim.interrupt()
                time.sleep(0.01)
            self.check("print(input.__name__)\n1", "input\n1\n", shim=shim)

    def test_between_cells_with_threads(self):
        self.check(
            """
            import threading, time
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            """
        )
        self.shim.interrupt()
        time.sleep(0.02)
        self.check("time.sleep(0.05)\nprint('fine')", "fine\n")

    def test_alarm_between_cells(self):
        self.check(
            """
            import signal, time
            def ring(*a):
                raise TimeoutError("rang")
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 2);
            """
        )
        time.sleep(4)
        self.raises("print('not reached')", "TimeoutError", "rang")
        self.check("print('next')", "next\n")

    def test_children_do_not_ignore_it(self):
        self.check(
            "import subprocess\nsubprocess.run(['sh', '-c', 'kill -2 $$; sleep 1']).returncode",
            "-2\n",
        )

    def test_storm(self):
        """Interrupts at any moment: each cell has exactly one end, and the shim lives on."""
        self.check("import time, asyncio")
        pid = os.fork()
        if pid == 0:
            try:
                for n in range(1500):
                    os.kill(self.shim.pid, signal.SIGINT)
                    time.sleep(0.0001 * (n % 13))
            finally:
                os._exit(0)
        kinds = set()
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            for code in ("x = 1\ntime.sleep(0.0003)\nx", "x = 1\nawait asyncio.sleep(0.0003)"):
                done = self.shim.run(code)
                self.assertIn(done.kind, "ci", done)
                kinds.add(done.kind)
        self.assertEqual(kinds, {"c", "i"})
        self.check("print('alive')", "alive\n")


if __name__ == "__main__":
    unittest.main()
