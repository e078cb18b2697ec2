"""Calls that run while the code goes on; threads, children, interrupts; and `await` of plain values."""

import time
import unittest

from test_mcp import Calls


class PendingCalls(Calls):
    def test_forms(self):
        self.check("await mcp_github.echo(a=1)", "{'a': 1}\n")
        self.check("import asyncio\nawait asyncio.gather(mcp_github.echo(a=1), mcp_github.echo(a=2))", "[{'a': 1}, {'a': 2}]\n")
        self.check("(await asyncio.create_task(mcp_github.echo(a=1))).a", "1\n")
        self.check("await asyncio.wait_for(mcp_github.echo(a=1), 5)", "{'a': 1}\n")
        self.raises("await asyncio.wait_for(mcp_github.slow(seconds=1), .05)", "TimeoutError" if self.new_names() else "asyncio.exceptions.TimeoutError")
        self.check("asyncio.run(mcp_github.echo(a=1))", "{'a': 1}\n")
        self.check("async def main():\n    return [x async for x in g()]\nasync def g():\n    yield await mcp_github.echo(a=1)\nawait main()", "[{'a': 1}]\n")
        self.check("p = mcp_github.echo(a=1)\nawait p, await p, p.a", "({'a': 1}, {'a': 1}, 1)\n")
        self.check("async def main():\n    print((await mcp_servers['github'].echo(a=1)).a)", "1\n")

    def new_names(self):
        from driver import VERSION

        return VERSION >= (3, 11)

    def test_used_without_await(self):
        self.check("p = mcp_github.list_issues(owner='o')")
        self.check("p[0].title, len(p), [x.title for x in p], bool(p), p == p[:], str(p)[:9], 1 in p", "('first', 1, ['first'], True, True, \"[{'title'\", False)\n")
        self.check("p = mcp_github.echo(a=1)\np.a, p['a'], 'a' in p, p == {'a': 1}, p != {'a': 1}, f'{p}', dict(p), {**p}, sorted(p)", "(1, 1, True, True, False, \"{'a': 1}\", {'a': 1}, {'a': 1}, ['a'])\n")
        self.check("n = mcp_github.null()\nprint(n, bool(n), n == None)", "None False True\n")
        self.check("mcp_github.echo(a=1)", "{'a': 1}\n")
        self.check("p['b'] = 2\ndel p['a']\np.keys(), p.get('b')", "(dict_keys(['b']), 2)\n")
        self.check("s = mcp_github.a_b()\ns + '!', s.upper(), '%s' % s, s < 'z', s * 2, '>' + str(s)", "('underscore!', 'UNDERSCORE', 'underscore', True, 'underscoreunderscore', '>underscore')\n")

    def test_calls_begin_at_once_and_run_in_parallel(self):
        self.check("a, b, c = [mcp_github.slow(seconds=2, n=n) for n in range(3)]\nprint(a.n, b.n, c.n)", "0 1 2\n")
        self.assertEqual(self.broker.most, 3)
        began = time.monotonic()
        self.check("x = mcp_github.slow(seconds=.3)\nimport time\ntime.sleep(.3)\nx.seconds", "0.3\n")
        self.check("y = mcp_github.slow(seconds=.3)\nawait mcp_github.echo()\ntime.sleep(.3)\n(await y).seconds", "0.3\n")
        self.assertLess(time.monotonic() - began, 60)
        self.assertEqual(len(self.asked()), 6)

    def test_many_and_out_of_order(self):
        code = """
            import asyncio
            async def main():
                calls = [mcp_github.slow(n=n, seconds=(100 - n) / 500) for n in range(100)]
                return [x.n for x in await asyncio.gather(*calls)] == list(range(100))
            print(asyncio.run(main()))
            print([x.n for x in [mcp_github.slow(n=n, seconds=(20 - n) / 100) for n in range(20)]] == list(range(20)))
            """
        self.check(code, "True\nTrue\n")
        self.assertGreater(self.broker.most, 50)
        self.check("sum(len(x['a']) for x in await asyncio.gather(*[mcp_github.echo(a='é' * 100_000) for _ in range(50)]))", "5000000\n")
        # The code reads nothing while it writes these, and the host reads no more until its answers are read.
        self.check("sum(len(x['a']) for x in [mcp_github.echo(a='é' * 100_000) for _ in range(50)])", "5000000\n")
        self.check("len(await asyncio.gather(*[mcp_github.echo(n=n) for n in range(2000)]))", "2000\n")

    def test_never_awaited(self):
        self.check("for n in range(3):\n    mcp_github.slow(n=n, seconds=.1)\nx = 1")
        self.assertEqual(self.broker.now, 0)
        self.assertEqual(len(self.asked()), 3)
        done = self.raises("mcp_github.echo()\nmcp_github.fail()\nprint(1)", "mcp.ToolError")
        self.assertEqual(done.out, "1\n")
        self.assertIn("began in <cell 2>, line 2, and the cell did not wait for it", done.message)
        done = self.raises("for _ in range(2):\n    mcp_github.fail()\n1/0", "ZeroDivisionError")
        self.assertEqual(done.err.count("mcp.ToolError: github.fail: no such repo"), 2)
        # Code that waits and catches the error has seen it.
        self.check("import asyncio\nlen(await asyncio.gather(mcp_github.fail(), mcp_github.fail(), return_exceptions=True))", "2\n")
        self.check("try:\n    mcp_github.fail().x\nexcept mcp.ToolError:\n    print('caught')", "caught\n")
        self.check("await asyncio.gather(mcp_github.echo())\nmcp_github.slow()\nx = 1")

    def test_a_task_that_outlives_its_cell(self):
        self.check("import asyncio\nasync def f():\n    return (await mcp_github.slow(seconds=.2)).seconds\nt = asyncio.create_task(f())\nawait asyncio.sleep(0)")
        self.check("await t", "0.2\n")

    def test_await_of_plain_values(self):
        self.check("await mcp.github.echo(a=1)", "{'a': 1}\n")
        self.check("x = await (await 5)\nx", "5\n")
        self.check("async def main():\n    return await github.echo(a=1), await None, [await n for n in (1, 2)]\nawait main()", "({'a': 1}, None, [1, 2])\n")
        self.check("import types, asyncio\n@types.coroutine\ndef g():\n    yield from asyncio.sleep(0)\n    return 7\nawait g()", "7\n")
        self.check("(await asyncio.sleep(0, 1)), await asyncio.wait_for(asyncio.sleep(0, 2), 1)", "(1, 2)\n")
        self.check("await asyncio.gather(mcp.github.echo(a=1), 5, mcp_github.echo(a=2))", "[{'a': 1}, 5, {'a': 2}]\n")
        self.check("await asyncio.gather(*(mcp.github.echo(a=n) for n in range(2)), asyncio.sleep(0, [3]))", "[{'a': 0}, {'a': 1}, [3]]\n")
        self.check("async def gather(*all):\n    return all\nawait gather(1, *[2])", "(1, 2)\n")
        done = self.raises("async def f():\n    1/0\nawait f()", "ZeroDivisionError")
        self.assertEqual(done.err.count("File"), 2, done.err)
        self.raises("def f():\n    await 1", "SyntaxError")


class ThreadsForksAndInterrupts(Calls):
    def test_threads(self):
        code = """
            import concurrent.futures as c
            with c.ThreadPoolExecutor(100) as pool:
                found = list(pool.map(lambda n: (mcp.github.slow(n=n, seconds=.05).n, mcp_github.echo(n=n).n), range(100)))
            found == [(n, n) for n in range(100)]
            """
        self.check(code, "True\n")
        self.assertGreater(self.broker.most, 10)
        self.assertLess(self.broker.lines, 200)
        self.check("p = [mcp_github.slow(n=n) for n in range(8)]\nwith c.ThreadPoolExecutor(8) as pool:\n    print(list(pool.map(lambda x: x.n, p)))", "[0, 1, 2, 3, 4, 5, 6, 7]\n")
        loop = """
            import asyncio, threading
            p = mcp_github.slow(n=1)
            out = []
            async def main():
                out.append((await p).n + (await mcp_github.slow(n=1)).n)
            threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(4)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            print(out, p.n)
            """
        self.check(loop, "[2, 2, 2, 2] 1\n")

    def test_fork(self):
        code = """
            import os, multiprocessing
            x = mcp.github.echo(n=0).n + mcp_github.echo(n=0).n
            p = mcp_github.slow(n=5)
            def f(n):
                try:
                    print(p.n)
                except mcp.ServerGone:
                    pass
                return mcp.github.echo(n=n).n + mcp_github.echo(n=n).n
            with multiprocessing.get_context("fork").Pool(3) as pool:
                print(pool.map(f, range(6)), p.n, mcp.github.echo(n=1).n)
            """
        self.check(code, "[0, 2, 4, 6, 8, 10] 5 1\n")

    def test_interrupt(self):
        for code in (
            "mcp.github.slow(seconds=2, n={n})",
            "mcp_github.slow(seconds=2, n={n}).n",
            "await mcp_github.slow(seconds=2, n={n})",
            "mcp_github.slow(seconds=2, n={n})\nx = 1",
            "async def f():\n    return mcp.github.slow(seconds=2, n={n})\nawait f()",
            "import asyncio\nawait asyncio.gather(*[mcp_github.slow(seconds=2, n=n) for n in range(10)])",
        ):
            self.shim.start("print('on', flush=True)\n" + code.format(n=1))
            self.shim.finish(until=b"on\n")
            time.sleep(0.1)
            self.shim.interrupt()
            done = self.shim.finish()
            self.assertEqual(done.kind, "i", (code, done))
            self.assertNotIn("<mcp>", done.err)
            # The late answer belongs to no call.
            self.check("mcp.github.slow(seconds=2, n=2).n, (await mcp_github.slow(seconds=.1, n=3)).n", "(2, 3)\n")

    def test_interrupts_at_any_time(self):
        self.check(
            """
            import signal, time
            class Stop(Exception): pass
            def stop(*_): raise Stop
            signal.signal(signal.SIGALRM, stop)
            wrong = stopped = 0
            for n in range(400):
                try:
                    signal.setitimer(signal.ITIMER_REAL, n % 40 * 0.00002 + 0.00001)
                    try:
                        found = mcp.github.echo(n=n).n if n % 2 else mcp_github.echo(n=n).n
                        wrong += found != n
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except (Stop, mcp.MCPError):
                    stopped += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(wrong, stopped > 0)
            """,
            "0 True\n",
            patience=30,
        )
        self.check("mcp.github.echo(n=1).n, (await mcp_github.echo(n=2)).n", "(1, 2)\n")

    def test_cells_that_break_python(self):
        broken = self.new()
        self.check("import builtins, os, sys\nbuiltins.len = builtins.isinstance = None\nos.getpid = None\nmcp.github.echo(a=1)['a']", "1\n", shim=broken)
        self.check("sys.modules.clear()\nmcp.github.echo(a=1)", "{'a': 1}\n", shim=broken)
        self.check("import socket\nsocket.setdefaulttimeout(0.01)\n(mcp.github.slow(seconds=.1).seconds, mcp_github.slow(seconds=.1).seconds)", "(0.1, 0.1)\n")
        self.check("mcp = 3\nmcp", "3\n")
        self.check("del mcp\nmcp.github.echo(a=1)['a']", "1\n")
        self.check("import builtins\ndel builtins.mcp")
        self.check("mcp.github.echo(a=1)['a']", "1\n")


if __name__ == "__main__":
    unittest.main()
