"""Ordinary cells: start, the forms of code, `await`, streams."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from driver import Case, Ended, PYTHON, string


class Start(Case):
    def test_first_expression_loads_nothing(self):
        self.check("print(1+1)", "2\n")
        self.assertEqual(self.shim.loads, [])

    def test_plain_script_loads_only_cell(self):
        self.check("import os\nx = 1\nprint(x)\n", "1\n")
        self.assertEqual(self.shim.loads, ["cell"])

    def test_imports_no_module(self):
        plain = subprocess.check_output(
            [PYTHON, "-I", "-c", "print(sorted(__import__('sys').modules))"], env={}, text=True
        )
        self.check("print(1+1)", "2\n")
        self.check("import sys\nprint(sorted(sys.modules))", plain)

    def test_warm_up(self):
        self.shim.load("cell")
        self.shim.load("errors_and_await")
        self.check("print(1+1)", "2\n")
        self.raises("1/0", "ZeroDivisionError")
        self.assertEqual(self.shim.loads, [])

    def test_namespace_is_bare(self):
        plain = subprocess.check_output([PYTHON, "-I", "-c", "print(dir())"], env={}, text=True)
        self.check("print(dir())", plain)
        self.check("print(dir())", plain)
        self.check("print(__name__, __doc__, __spec__)", "__main__ None None\n")

    def test_arguments(self):
        self.check("print(__import__('sys').argv)", "['<cell 1>']\n")
        self.check(
            "import sys\nprint(sys.argv)",
            "['a.py', 'x', '', 'é']\n",
            name="a.py",
            args=("x", "", "é"),
        )
        self.check("sys.argv", "['<cell 3>', '-v']\n", args=("-v",))

    def test_file(self):
        self.check("print(__file__)", "a.py\n", name="a.py")
        self.raises("print(__file__)", "NameError")
        self.check("__file__ = 'mine'")
        self.check("print(__file__)", "mine\n")

    def test_import_from_working_directory(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "helper.py").write_text("value = 7\n")
            (Path(folder) / "json.py").write_text("raise RuntimeError('hidden')\n")
            shim = self.new(cwd=folder)
            self.check("import helper, json\nhelper.value", "7\n", shim=shim)

    def test_pickle_and_main(self):
        self.check(
            """
            import pickle
            class A: pass
            if __name__ == "__main__":
                print(type(pickle.loads(pickle.dumps(A()))) is A)
            """,
            "True\n",
        )

    def test_multiprocessing(self):
        self.check(
            """
            import multiprocessing
            def f(x):
                return x * x
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(f, range(4)))
            """,
            "[0, 1, 4, 9]\n",
        )


class Code(Case):
    def test_state_lasts(self):
        self.check("x = 20\ndef f():\n    return x + 1")
        self.check("x += 1")
        self.check("f() * 2", "44\n")
        self.check("_ + 1", "45\n")

    def test_display(self):
        for code, out in (
            ("1 + 1", "2\n"),
            ("'text'", "'text'\n"),
            ("None", ""),
            ("x = 3", ""),
            ("x", "3\n"),
            ("x;", ""),
            ("x ;  # really", ""),
            ("x # not;", "3\n"),
            ("'a;'", "'a;'\n"),
            ("('é',\n 'ü') ; # no", ""),
            ("y = 1; x + y", "4\n"),
            ("(x\n)\n\n# end\n", "3\n"),
            ("x = 4\r\nx\r\n", "4\n"),
            ("x = 5\rx;\r", ""),
            ("if x:\n    x", ""),
            ("print('a'); x", "a\n5\n"),
            ("'doc'\nimport os\nos.sep", "'/'\n"),
            ("", ""),
            ("# nothing", ""),
            ("\n\n", ""),
            ("(lambda: 5)()", "5\n"),
            ("(z := 8)", "8\n"),
            ("z", "8\n"),
        ):
            with self.subTest(code=code):
                self.check(code, out)

    def test_first_cells(self):
        """The same cells, each as the first of a process, which boot.py may evaluate itself."""
        for code, out in (
            ("1 + 1", "2\n"),
            ("'text'\n", "'text'\n"),
            ("None", ""),
            ("x = 3", ""),
            ("3;", ""),
            ("'for'", "'for'\n"),
            ("  5", "5\n"),
            ("(1,\n2)", "(1, 2)\n"),
            ("", ""),
            ("print(\n'a')", "a\n"),
        ):
            with self.subTest(code=code):
                shim = self.new()
                self.check(code, out, shim=shim)
                self.check("x = 1\nx", "1\n", shim=shim)

    def test_display_hook_of_the_user(self):
        self.check("import sys\nsys.displayhook = lambda v: print('<', v, '>')")
        self.check("5", "< 5 >\n")
        self.check("None", "< None >\n")
        self.check("del sys.displayhook")
        self.check("5", "5\n")

    def test_future_lasts(self):
        self.check("from __future__ import annotations\n")
        self.check("def f(x: nowhere): pass\nf.__annotations__", "{'x': 'nowhere'}\n")

    def test_indented_as_a_whole(self):
        self.shim.start("")
        self.shim.finish()
        frame = b"R" + string("<c>") + string("\n    x = 1\n\n    if x:\n        print(x)\n")
        self.shim.send(frame + b"\0\0\0\0")
        self.assertEqual(self.shim.finish().out, "1\n")
        frame = b"R" + string("<c>") + string("    x = 1\ny = 2\n")
        self.shim.send(frame + b"\0\0\0\0")
        self.assertEqual(self.shim.finish().type, "IndentationError")

    def test_byte_order_mark(self):
        self.check("\ufeffx = 1\nprint(x)", "1\n")

    def test_warning_names_the_cell(self):
        done = self.shim.run("x = 1\nx is 2")
        self.assertEqual(done.out, "False\n")
        self.assertTrue(done.err.startswith('<cell 1>:2: SyntaxWarning: "is" with'), done)


class Await(Case):
    def test_top_level(self):
        self.check("import asyncio\nx = await asyncio.sleep(0, 5)\nprint(x)", "5\n")
        self.check("await asyncio.sleep(0, 6)", "6\n")
        self.check("await asyncio.sleep(0, 6);")
        self.check("async def f():\n    return 7\nawait f()", "7\n")
        self.check("f()", "7\n")
        self.check("x = f()\nx", "7\n")
        self.check("async def g():\n    yield 1\n    yield 2\n[y async for y in g()]", "[1, 2]\n")
        self.check("async with asyncio.Lock() as lock:\n    print(lock)", "None\n")

    def test_trailing_coroutine_in_an_awaiting_cell(self):
        self.check("import asyncio\nawait asyncio.sleep(0)\nasyncio.sleep(0, 3)", "3\n")

    def test_main(self):
        self.check("'doc'\nimport os\nasync def main():\n    return 5\n", "5\n")
        self.check("async def run(x=1, *a, y=2, **k):\n    print(x + y)\n", "3\n")
        self.check("async def run():\n    return 1\nasync def main():\n    return 2", "2\n")
        self.check("class A: pass\ndef f(): pass\nasync def run():\n    return 1", "1\n")

    def test_not_main(self):
        for code in (
            "def main():\n    print('sync')  # async",
            "async def main(x):\n    print('needs x')",
            "async def main(*, x):\n    print('needs x')",
            "async def main():\n    print('with more')\nx = 1",
            "async def main():\n    print('again')\ndef main(): pass",
            "async def other():\n    print('other')",
            "import os  # async def main()",
            "@__import__('functools').lru_cache\nasync def main():\n    print('decorated')",
        ):
            with self.subTest(code=code):
                self.check(code)

    def test_main_calls_itself(self):
        self.check(
            """
            import asyncio
            async def main():
                print("once")
            if __name__ == "__main__":
                asyncio.run(main())
            """,
            "once\n",
        )

    def test_asyncio_run(self):
        self.check("import asyncio\nasync def f():\n    return 3\nprint(asyncio.run(f()))", "3\n")
        self.check("await f()", "3\n")
        self.check("asyncio.run(f())", "3\n")
        done = self.raises("await f()\nc = f()\nasyncio.run(c)", "RuntimeError")
        self.assertEqual(done.message, "asyncio.run() cannot be called from a running event loop")
        self.check("await c", "3\n")

    def test_one_loop_for_all_cells(self):
        self.check(
            """
            import asyncio
            async def tick():
                for n in range(3):
                    print(n)
                    await asyncio.sleep(0.01)
            task = asyncio.create_task(tick())
            await asyncio.sleep(0)
            """,
            "0\n",
        )
        self.check("await task", "1\n2\n")
        self.check("loop = asyncio.get_event_loop()\nloop.close()")
        self.check("await asyncio.sleep(0, 'new')", "'new'\n")

    def test_context_is_one(self):
        self.check(
            """
            import asyncio, contextvars
            v = contextvars.ContextVar("v")
            v.set(1)
            await asyncio.sleep(0)
            v.get()
            """,
            "1\n",
        )

    def test_error(self):
        done = self.raises(
            "import asyncio\nasync def f():\n    1/0\nawait f()", "ZeroDivisionError"
        )
        self.assertIn('  File "<cell 1>", line 4, in <module>\n    await f()\n', done.err)
        self.assertIn('  File "<cell 1>", line 3, in f\n    1/0\n', done.err)
        self.assertNotIn("asyncio/", done.err)
        self.assertNotIn("whole", done.err)
        done = self.raises("async def main():\n    1/0\n", "ZeroDivisionError")
        self.assertIn('  File "<cell 2>", line 2, in main\n', done.err)
        self.assertNotIn("asyncio/", done.err)

    def test_exit(self):
        self.assertEqual(
            self.shim.run("import sys, asyncio\nawait asyncio.sleep(0)\nsys.exit(4)").code, 4
        )
        done = self.check(
            """
            async def inner():
                await asyncio.sleep(0)
                sys.exit(5)
            await asyncio.gather(inner())
            """,
            kind="x",
        )
        self.assertEqual(done.code, 5)
        done = self.check(
            """
            task = asyncio.ensure_future(inner())
            try:
                await asyncio.sleep(10)
            finally:
                print("end")
            """,
            "end\n",
            kind="x",
        )
        self.assertEqual(done.code, 5)
        self.check("await asyncio.sleep(0, 1)", "1\n")


class Streams(Case):
    def test_any_text(self):
        self.check("print('é \\ud800 \\udcff \\U0001f600')", "é \\ud800 \\udcff \U0001f600\n")
        self.check("'\\ud800'", "'\\ud800'\n")
        self.check("import sys\nprint('\\ud800', file=sys.stderr)", "", "\\ud800\n")

    def test_any_locale(self):
        for env in (
            {"LC_ALL": "POSIX"},
            {"LC_ALL": "en_US.ISO-8859-1"},
            {"PYTHONIOENCODING": "ascii"},
        ):
            with self.subTest(env=env):
                self.check("print('é')", "é\n", shim=self.new(env=env))

    def test_order_with_children(self):
        self.check(
            "import os\nprint('a')\nos.system('echo b')\nprint('c')\nos.system('echo d');",
            "a\nb\nc\nd\n",
        )

    def test_flushed_without_newline(self):
        self.check("import sys\nprint('a', end='')\nx = sys.stderr.write('b')", "a", "b")

    def test_large_output(self):
        done = self.shim.run("print('x' * 5_000_000)")
        self.assertEqual(len(done.out), 5_000_001)

    def test_closed_streams_come_back(self):
        self.check("import sys\nsys.stdout.close()\nsys.stderr.close()\nsys.stdin.close()")
        os.write(self.shim.stdin, b"in\n")
        self.check("print('out', input()); print('err', file=sys.stderr)", "out in\n", "err\n")
        self.check("sys.stdout = sys.stderr = None")
        self.check("print('out')", "out\n")
        self.check("del sys.stdout")
        self.check("print('é\\ud800', flush=True)", "é\\ud800\n")
        self.check("b = sys.stdout.detach()")
        self.check("print('out')", "out\n")
        self.check("sys.__stdout__.write('x');", "x")

    def test_closed_in_first_expression(self):
        self.check("exit.__class__.__call__.__globals__['sys'].stdout.close()")
        self.check("print('out')", "out\n")

    def test_replaced_streams_stay(self):
        self.check("import sys, io\nsys.stdout = io.StringIO()\nprint('kept')")
        self.check("print('kept too')")
        self.check(
            "sys.stderr.write(sys.stdout.getvalue())\nsys.stdout = sys.__stdout__",
            "",
            "kept\nkept too\n",
        )
        self.check(
            "class W:\n    def write(self, t): sys.__stdout__.write(t.upper())\nsys.stdout = W()"
        )
        self.check("print('loud')", "LOUD\n")

    def test_descriptor_closed(self):
        self.check("import os, sys\nos.close(1)\nsys.stdout.close()")
        self.check("print('back')", "back\n")
        self.check("os.close(1)\nos.close(2)")
        self.check("print('out'); print('err', file=sys.stderr); os.system('echo child');", "out\nchild\n", "err\n")
        self.raises("os.close(1)\nprint('nowhere', flush=True)", "OSError")
        self.check("os.close(1)\nraise SystemExit", kind="x")
        # The buffer still had it.
        self.check("1 + 1", "nowhere\n2\n")
        # After a cell that closes the copies too, the next one fails instead of losing its output.
        self.check("os.closerange(4, 1000)\nos.close(1)")
        with self.assertRaises(Ended) as ended:
            self.shim.run("print('nowhere', flush=True)")
        self.assertEqual(ended.exception.status, 3)

    def test_children_inherit_no_copies(self):
        self.check("import os\n[fd for fd in os.popen('ls /proc/self/fd').read().split() if fd in ('232', '233')]", "[]\n")

    def test_stdin(self):
        os.write(self.shim.stdin, "grüß\n".encode())
        self.check("x = input('? ')\nprint(x)", "? grüß\n")
        os.close(self.shim.stdin)
        self.shim.stdin = os.open("/dev/null", os.O_RDONLY)
        self.raises("input()", "EOFError")


if __name__ == "__main__":
    unittest.main()
