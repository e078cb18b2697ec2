"""Questions about code that a person is writing."""

import os
import tempfile
import textwrap
import unittest

from driver import VERSION, Case

COMPLETE, BLOCK, OPEN = "complete", "block", "open"


class Completeness(Case):
    def check_all(self, cases):
        for code, expected in cases:
            with self.subTest(code=code):
                self.assertEqual(self.shim.ask("c", code), expected)

    def test_lines_and_comments(self):
        self.check_all(
            [
                ("", COMPLETE),
                ("x = 1", COMPLETE),
                ("x = 1\ny = 2", COMPLETE),
                ("# only a comment", COMPLETE),
                ("def f():  # say why:", OPEN),
                ("print('a')  # :", COMPLETE),
                ("iffy: int = 1", COMPLETE),
                ("x = a if b else c", COMPLETE),
                ("await f()", COMPLETE),
                ("await f(", OPEN),
            ]
        )

    def test_blocks(self):
        self.check_all(
            [
                ("def f():", OPEN),
                ("def f():\n    return 1", BLOCK),
                ("def f():\n\treturn 1", BLOCK),
                ("def f():\n    return 1\n", COMPLETE),
                ("def f():\n    return 1\n    ", COMPLETE),
                ("def f():\n    # a note", OPEN),
                ("def f():\n    return 1\nprint(f())", COMPLETE),
                ("def f():\n    return 1\nprint(", OPEN),
                ("def f():\n    if x:", OPEN),
                ("def f():\n    if x:\n        y()", BLOCK),
                ("def f():\n    pass\ndef g():\n    x = 1", BLOCK),
                ("class A:\n    def f(self):\n        pass\n\n    def g(self):\n        pass", BLOCK),
                ("if x:\n    a()\nelse:", OPEN),
                ("if x:\n    a()\nelse:\n    b()", BLOCK),
                ("if x:\n    a()\nelse:\n    b()\n", COMPLETE),
                ("async def f():", OPEN),
                ("async with a as b:", OPEN),
                ("if x: a()", BLOCK),
                ("if x: a()\nelse: b()", BLOCK),
                ("if x: a()\nelse: b()\n", COMPLETE),
                ("while True: pass", BLOCK),
                ("async for x in y: pass", BLOCK),
                ("try: a()\nexcept: b()", BLOCK),
                ("@cache", OPEN),
                ("@cache\ndef f(): pass", BLOCK),
            ]
        )
        if VERSION >= (3, 11):
            self.check_all([("match x:\n    case 1:", OPEN), ("match x:\n    case 1: pass", BLOCK)])

    def test_brackets_strings_and_joined_lines(self):
        self.check_all(
            [
                ("f(", OPEN),
                ("f(\n", OPEN),
                ("f(\n    1,\n)", COMPLETE),
                ("x = {'a': [1,", OPEN),
                ("x = {'a':\n    1}", COMPLETE),
                ("x = ']'  # [", COMPLETE),
                ("def f(\n    a,\n):", OPEN),
                ("def f(\n    a,\n):\n    pass", BLOCK),
                ("x[1:", OPEN),
                ("x = '''", OPEN),
                ("x = '''\ndef f():\n\n", OPEN),
                ("x = '''\ndef f():\n'''", COMPLETE),
                ("x = \"\"\"a'''b", OPEN),
                ("x = ''''a'''", COMPLETE),
                ("x = 'it\\'s'", COMPLETE),
                ("x = 'a\\", OPEN),
                ("x = 'a\\\nb'", COMPLETE),
                ("x = r'\\'' + (", OPEN),
                ("x = '''\\'''", OPEN),
                ("x = 1 + \\", OPEN),
                ("x = 1 + \\\n    2", COMPLETE),
                ("if a and \\\n   b:", OPEN),
                ("x = 1 # \\", COMPLETE),
            ]
        )

    def test_mistakes_are_for_the_cell_to_show(self):
        self.check_all(
            [
                ("x = 'it", COMPLETE),
                ("x = 'a\\\\", COMPLETE),
                ("f(1)]", COMPLETE),
                ("if x", COMPLETE),
                ("    x = 1", COMPLETE),
                ("x = 1\n    y = 2", COMPLETE),
                (")", COMPLETE),
                ("\0", COMPLETE),
                ("(" * 10_000, COMPLETE),
            ]
        )

    def test_asking_runs_and_prints_nothing(self):
        self.check("import sys; before = set(sys.modules), set(globals())")
        self.assertEqual(self.shim.ask("c", "print(1); x = 5; x is 5; '\\d'"), COMPLETE)
        self.assertEqual(self.shim.ask("c", "raise SystemExit"), COMPLETE)
        self.check("set(globals()) - before[1]", "{'before'}\n")
        self.check("_", "{'before'}\n")

    def test_a_first_cell_after_questions_is_like_any_other(self):
        self.assertEqual(self.shim.ask("c", "f("), OPEN)
        self.check("6 * 7", "42\n")
        self.assertEqual(self.shim.ask("c", "f("), OPEN)
        self.raises("1/0", "ZeroDivisionError")
        self.assertEqual(self.shim.ask("c", "f()"), COMPLETE)

    def test_cells_may_have_broken_everything(self):
        self.check("compile = exec = len = print = sorted = None; __builtins__ = None; import sys")
        self.assertEqual(self.shim.ask("c", "f("), OPEN)
        self.shim.run("sys.modules.clear()")
        self.assertIn(self.shim.ask("c", "f("), (OPEN, ""))
        self.shim.run("def f(): pass")


class Completions(Case):
    def names(self, code):
        return self.shim.ask("n", code).split("\n")

    def test_variables_builtins_and_keywords(self):
        self.check("alpha_one = 1; alpha_two = 2; _hidden = 3")
        self.assertEqual(self.names("print(alpha_"), ["alpha_one", "alpha_two"])
        self.assertEqual(self.names("whil"), ["while"])
        self.assertEqual(self.names("isinst"), ["isinstance"])
        self.assertEqual(self.names("_hid"), ["_hidden"])
        self.assertNotIn("_hidden", self.names(""))
        self.assertEqual(self.names("nothing_like_this"), [""])

    def test_attributes(self):
        code = """
            import os
            class Base:
                inherited = 1
            class Thing(Base):
                shared = {}
                def __init__(self):
                    self.own = os
            thing = Thing()
        """
        self.check(textwrap.dedent(code))
        self.assertEqual(self.names("os.path.joi"), ["join"])
        self.assertEqual(self.names("x = [thing.o"), ["own"])
        self.assertEqual(self.names("thing."), ["inherited", "own", "shared"])
        self.assertEqual(self.names("Thing."), ["inherited", "mro", "shared"])
        self.assertEqual(self.names("thing.own.getpi"), ["getpid"])
        self.assertEqual(self.names("thing.shared.ke"), ["keys"])
        self.assertEqual(self.names("str.uppe"), ["upper"])
        for unknown in ("nowhere.x", "f().x", "'a'.up", "thing.nowhere.x", "1.", "."):
            self.assertEqual(self.names(unknown), [""], unknown)

    def test_no_code_is_run(self):
        code = """
            class Loud:
                @property
                def loud(self):
                    print("a property")
                def __getattr__(self, name):
                    print("getattr", name)
                def __dir__(self):
                    print("dir")
            loud = Loud()
        """
        self.check(textwrap.dedent(code))
        self.assertEqual(self.names("loud.lo"), ["loud"])
        self.assertEqual(self.names("loud.loud.x"), [""])
        self.assertEqual(self.names("loud.other.x"), [""])
        self.check("1", "1\n")

    def test_answers_are_bounded(self):
        self.check("for n in range(5000): globals()[f'name_{n}_' + 'x' * (n % 100)] = n")
        names = self.names("name_")
        self.assertEqual(len(names), 500)
        self.assertLess(len("\n".join(names)), 32 << 10)

    def test_a_module_that_hides_the_library_is_not_used(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "codeop.py"), "w") as file:
                file.write("raise SystemExit")
            shim = self.new(cwd=folder)
            shim.run("x = 1")
            self.assertEqual(shim.ask("c", "f("), OPEN)


if __name__ == "__main__":
    unittest.main()
