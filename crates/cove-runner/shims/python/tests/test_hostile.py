"""Cells that work against the shim, and a runner that leaves."""

import os
import socket
import time
import unittest

from driver import VERSION, Case, Ended


class Socket(Case):
    def test_children_do_not_have_it(self):
        self.check("import os\nos.system('test -S /proc/self/fd/3')", "256\n")
        self.check(
            "pid = os.fork()\nif not pid:\n    try:\n        os.fstat(3)\n        os._exit(1)\n"
            "    except OSError:\n        os._exit(0)\nos.waitpid(pid, 0)[1]",
            "0\n",
        )

    def test_runner_leaves(self):
        for code in ("print(1)", "import os\nprint('x', end='')", None):
            shim = self.new()
            if code:
                shim.run(code)
            shim.socket.shutdown(socket.SHUT_RDWR)
            self.assertEqual(shim.wait(), 3)
            self.assertEqual(shim.drain(shim.stderr), b"")

    def test_runner_leaves_during_a_cell(self):
        self.shim.start("import time\nprint('on')\ntime.sleep(0.1)\nprint('end', end='')\n1/0")
        self.shim.finish(until=b"on\n")
        self.shim.load("errors_and_await")
        self.shim.socket.shutdown(socket.SHUT_RD)
        self.assertEqual(self.shim.wait(), 3)
        self.assertIn(b"end", self.shim.drain(self.shim.stdout))

    def test_user_closes_it(self):
        for code in ("import os\nos.close(3)", "import os\nos.close(3)\n1/0"):
            shim = self.new()
            with self.assertRaises(Ended) as ended:
                shim.run(code)
            self.assertEqual(ended.exception.status, 3)

    def test_user_replaces_it(self):
        with self.assertRaises(Ended) as ended:
            self.shim.run("import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 3)")
        self.assertEqual(ended.exception.status, 3)


class Hostile(Case):
    def test_nul(self):
        for code in ("x = 1\nx = '\0'", "print('\0')"):
            done = self.new().run(code)
            self.assertIn((done.kind, done.type), (("r", "SyntaxError"), ("r", "ValueError")))
            self.assertEqual(done.message, "source code string cannot contain null bytes")

    def test_huge(self):
        code = "x = [" + "1," * 50_000 + "]\n" + "y = 1\n" * 10_000 + "len(x)\n#"
        self.check(code + "x" * ((1 << 20) - len(code)), "50000\n")
        self.check("x = '" + "a" * ((1 << 20) - 20) + "'\nlen(x)", "1048556\n")

    def test_deep(self):
        # Before 3.11 the compiler itself overflows its stack when that is much deeper.
        deep = 200_000 if VERSION >= (3, 11) else 5000
        for code in (
            "(" * 5000 + ")" * 5000,
            "[" * 190 + "]" * 190,
            "x = " + "-" * 200_000 + "1",
            "x" + ".a" * deep,
        ):
            for shim in (self.shim, self.new()):
                with self.subTest(code=code[:10]):
                    done = shim.run(code)
                    self.assertIn(done.kind, "rc", done)
                    self.check("print('alive')", "alive\n", shim=shim)

    def test_long_sum(self):
        self.check("x = " + "+".join(["1"] * 1400) + "\nprint(x)", "1400\n")

    def test_builtins(self):
        for code in (
            "del __builtins__",
            "__builtins__ = {}",
            "import builtins\nfor name in 'len repr int map any isinstance getattr type'.split():\n"
            "    setattr(builtins, name, None)",
            "len = any = map = int = isinstance = type = sys = frame = guard = run = None",
            "import sys\nsys.modules.clear()",
            "import sys\nsys.modules = {}",
            "import os, posix\nfor m in (os, posix):\n    m.read = m.write = m.getpid = None",
            "import _signal\n_signal.signal = _signal.pthread_sigmask = None",
            "import sys\nsys.settrace(lambda *a: 1/0)",
            "import sys\ndel sys.argv, sys.path[:], sys.displayhook",
            "import sys\nsys.exc_info = sys.excepthook = None",
            "import traceback, linecache\ntraceback.TracebackException = linecache.cache = None",
            "globals().clear()",
        ):
            with self.subTest(code=code):
                shim = self.new()
                shim.run(code)
                self.check("print('a')", "a\n", shim=shim)
                self.check(
                    "x = 5\n" + ("x" if "repr" not in code else "print(x)"), "5\n", shim=shim
                )
                done = self.raises("x = 5\n1/0", "ZeroDivisionError", shim=shim)
                self.assertIn("division by zero", done.err)
                self.check("print('b')", "b\n", shim=shim)

    def test_empty_modules(self):
        self.check("import sys\nsys.modules.clear()")
        self.check("import json, os\nprint(json.dumps([os.sep]))", '["/"]\n')
        self.check("import asyncio\nawait asyncio.sleep(0, 4)", "4\n")

    def test_low_recursion_limit(self):
        self.check("import sys\nsys.setrecursionlimit(25)")
        done = self.shim.run("x = 5\n1/0")
        self.assertEqual(done.kind, "r", done)
        self.check("sys.setrecursionlimit(1000)\nprint(1)", "1\n")

    def test_threads_go_on(self):
        self.check(
            """
            import threading, time
            ticks = []
            def tick():
                while True:
                    ticks.append(1)
                    time.sleep(0.001)
            threading.Thread(target=tick, daemon=True).start()
            """
        )
        time.sleep(0.05)
        self.check("len(ticks) > 10", "True\n")

    def test_debugger(self):
        os.close(self.shim.stdin)
        self.shim.stdin = os.open("/dev/null", os.O_RDONLY)
        self.shim.run("import pdb\npdb.set_trace()\nx = 1", patience=5)
        self.check("print('alive')", "alive\n")


if __name__ == "__main__":
    unittest.main()
