"""The library for tools, with a fake host: names, values, errors, and the module."""

import os
import tempfile
import unittest
from pathlib import Path

from broker import PNG, Broker
from driver import Case


class Calls(Case):
    def setUp(self):
        self.broker = Broker()
        self.addCleanup(self.broker.close)
        super().setUp()

    def new(self, **options):
        return super().new(**{"env": {"COVE_MCP": self.broker.path}, **options})

    def asked(self, kind="call"):
        return [request for request in self.broker.requests if request["ask"] == kind]


class Start(Calls):
    def test_a_cell_without_tools_asks_and_loads_nothing(self):
        self.check("print(1+1)", "2\n")
        self.assertEqual(self.shim.loads, [])
        self.check(
            """
            import os.path as p, sys
            from collections import *
            with open("/dev/null") as file:
                file.read()
            for one in (1, 2):
                one.real
            class A:
                x = 1
                y = x.real
            def f(a):
                global g
                b = a
                g = "not_a_server."
                return b.real, p.join("a", "b"), sys.path
            _ = f(1), [c.real for c in (1,)], A.y.real, "x.y"
            """
        )
        self.assertEqual(self.shim.loads, ["cell"])
        self.assertEqual(self.broker.lines, 0)
        self.check("print([m for m in sys.modules if m in ('json', '_socket', 'm' + 'cp', 'selectors')])", "[]\n")

    def test_a_call_imports_neither_json_nor_asyncio(self):
        self.check("mcp.github.list_issues(owner='o')[0].title", "'first'\n")
        code = "import sys\nprint([m for m in ('json', 'socket', 'selectors') if m in sys.modules])"
        self.check(code, "[]\n")

    def test_first_cell_of_one_expression(self):
        for code in ("mcp.github.echo(a=1)", "github.echo(a=1)", "print(f'{github.echo(a=1)}')", "mcp_github.echo(a=1)"):
            self.check(code, "{'a': 1}\n", shim=self.new())
        # A text with a dot is not a server.
        self.check("print('a.b'.upper())", "A.B\n")
        self.assertEqual(self.shim.loads, [])

    def test_namespace_stays_bare(self):
        self.check("mcp.github.echo()\ngithub.echo()\nprint([n for n in dir() if 'mcp' in n or n == 'github'])", "[]\n")

    def test_without_a_host(self):
        shim = self.new(env={})
        done = self.raises("mcp.github.echo()", "mcp.ServerUnavailable", shim=shim)
        self.assertIn("`COVE_MCP` is not set", done.message)
        self.raises("github.echo()", "NameError", shim=shim)
        shim = self.new(env={"COVE_MCP": "/nonexistent"})
        self.raises("mcp.find('x')", "mcp.ServerUnavailable", shim=shim)
        self.raises("github.echo()", "NameError", shim=shim)


class Names(Calls):
    def test_forms(self):
        self.check("mcp.github.echo(a=1)", "{'a': 1}\n")
        self.check("mcp.servers.github.echo(a=1)", "{'a': 1}\n")
        self.check("mcp_servers['github'].echo(a=1)", "{'a': 1}\n")
        self.check("mcp.servers['my_files'].read('x')", "{'path': 'x'}\n")
        self.check("mcp.call('github', 'echo', {'a': 1})", "{'a': 1}\n")
        self.check("mcp.call('github', 'echo', raw=True)", "{'content': [], 'isError': False}\n")
        self.check("mcp.call('github', 'echo', timeout=1.5)", "{}\n")
        self.assertEqual(self.asked()[-1]["timeout"], 1.5)
        self.check("mcp.call('github.echo', {'a': 1}), mcp.call('github.echo', a=2, from_=3), mcp.call('my_files.read', {'path': 'x'}, encoding='y')", "({'a': 1}, {'a': 2, 'from': 3}, {'path': 'x', 'encoding': 'y'})\n")
        self.check("mcp.call(mcp.github.echo, {'a': 1}), mcp.call(mcp.github, 'echo', a=1), mcp.call(server='github', tool='echo', arguments={'a': 1})", "({'a': 1}, {'a': 1}, {'a': 1})\n")
        self.check("mcp['github'].echo(a=1), mcp['my-files']['read'](path='x')", "({'a': 1}, {'path': 'x'})\n")
        self.assertIn("did you mean `github`?", self.raises("mcp['githup']", "mcp.UnknownServer").message)
        self.assertIn("did you mean `github`?", self.raises("mcp.call('githup.echo')", "mcp.UnknownServer").message)
        self.raises("mcp.call('github')", "mcp.BadArguments")
        self.raises("mcp.call('../../etc.passwd')", "mcp.UnknownServer")
        self.check("LOADED_MCP_SERVERS", "('github', 'time', 'my-files')\n")
        self.check("'github' in LOADED_MCP_SERVERS, len(mcp_servers), list(mcp.servers)[1]", "(True, 3, 'time')\n")
        self.broker.add("a.b", "c.d")
        self.check("mcp.call('a.b.c.d', x=1)", "['a.b', 'c.d', {'x': 1}]\n")

    def test_bare_names_hide_nothing(self):
        self.check("github.echo(a=1)", "{'a': 1}\n")
        self.check("def f():\n    return my_files.read('x')\nf()", "{'path': 'x'}\n")
        self.raises("time.now()", "NameError")
        self.check("mcp.time.now(), (lambda: mcp_time.now())()", "({}, {})\n")
        self.check("github = 'mine'\ngithub.upper()", "'MINE'\n")
        self.check("del github\ngithub.echo()", "{}\n")
        self.raises("import numpy_of_nobody", "ModuleNotFoundError")
        self.raises("nobody.echo()", "NameError")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "github.py").write_text("def echo(): return 'module'\n")
            shim = self.new(cwd=folder)
            self.raises("github.echo()", "NameError", shim=shim)
            self.check("mcp.github.echo()", "{}\n", shim=shim)
            self.check("import github\ngithub.echo()", "'module'\n", shim=shim)

    def test_a_server_that_comes_later(self):
        self.raises("mcp.later.echo()", "mcp.UnknownServer")
        self.broker.servers.append({"name": "later", "alias": "later", "state": "ready"})
        self.check("'later' in mcp.servers", "True\n")

    def test_spelling(self):
        self.check("mcp.my_files.read(path='x')", "{'path': 'x'}\n")
        self.check("mcp.github.get_sum(cik_A=1, from_=2, from_date=3)", "{'cik-A': 1, 'from': 2, 'from_date': 3}\n")
        self.check("mcp.github['get-sum'](**{'from': 2, 'cik-A': 1})", "{'from': 2, 'cik-A': 1}\n")
        self.check("mcp.github.get_sum({'from': 2}, cik_A=None)", "{'from': 2, 'cik-A': None}\n")
        self.check("mcp_github.get_sum(cik_A=1)", "{'cik-A': 1}\n")
        self.check("await mcp_github.get_sum(cik_A=2)", "{'cik-A': 2}\n")
        self.check("mcp.github['a-b'](), mcp.github.a_b(), mcp.github.a_b_2()", "('dash', 'underscore', 'dash')\n")
        # A tool with the name of a member of the library.
        self.check("mcp.github.resources_(a=1), mcp.github['resources'](a=2)", "({'a': 1}, {'a': 2})\n")

    def test_null_is_not_absent(self):
        self.check("mcp.github.echo(a=None, b=..., c=0, d='')", "{'a': None, 'c': 0, 'd': ''}\n")
        self.assertEqual(self.asked()[-1]["arguments"], {"a": None, "c": 0, "d": ""})
        self.check("print(mcp.github.null())", "None\n")

    def test_arguments_without_names(self):
        self.check("mcp.my_files.read('x', encoding='y')", "{'encoding': 'y', 'path': 'x'}\n")
        done = self.raises("mcp.github.list_issues('o', 'r')", "mcp.BadArguments")
        self.assertIn("hint: give parameters by name", done.message)

    def test_unknown_names(self):
        done = self.raises("mcp.githup.echo()", "mcp.UnknownServer")
        self.assertIn("did you mean `github`?", done.message)
        done = self.raises("mcp.github.list_isues()", "mcp.UnknownTool")
        self.assertIn("did you mean `list_issues`?", done.message)
        self.raises("mcp_servers['nope']", "mcp.UnknownServer")
        self.raises("mcp_nope.x()", "NameError")
        self.check("hasattr(mcp, 'nope'), hasattr(mcp, 'github'), getattr(mcp, '__wrapped__', 1)", "(False, True, 1)\n")
        self.raises("from mcp import nope", "ImportError")

    def test_shown(self):
        done = self.shim.run("mcp.github")
        self.assertIn("list_issues(*, owner, repo)\necho(*, )\n", done.out)
        self.check("mcp.github.list_issues", "list_issues(*, owner, repo)\n")
        self.check("mcp.servers", "github (7 tools, ready): Issues.\ntime (1 tool, idle)\nmy-files (needs npx): Files\n")
        self.check("sorted(set(dir(mcp)) & {'find', 'github', 'my_files'})", "['find', 'github', 'my_files']\n")
        self.check("'get_sum' in dir(mcp.github), 'a-b' in mcp.github, len(list(mcp.github))", "(True, True, 7)\n")
        self.check("repr(mcp)[:5]", "'<mcp:'\n")


class Discovery(Calls):
    def test_find(self):
        text = "mcp.github.list_issues(owner, repo)\n# Lists. Really.\n# also: github.a, time.b\n# 1 of 7 matches\n# for issues\n"
        self.check("mcp.find('issues')", text)
        self.check("found = mcp.find('issues', limit=1)\nprint(found)", text)
        self.check("[one.tool for one in found], len(found), found[0].server, found.total", "(['list_issues'], 1, 'github', 7)\n")
        self.assertEqual([request["limit"] for request in self.asked("find")], [5, 1])
        self.check("mcp.find()", "github (2 tools): Code\ntime (1 tool)\n# search\n")

    def test_help_and_output(self):
        self.check("mcp.help()", "the manual\nof two lines\n")
        self.assertIn("list_issues", self.shim.run("mcp.help('github')").out)
        for topic in ("'github.list_issues'", "mcp.github.list_issues", "github.list_issues"):
            self.check(f"mcp.help({topic})", "list_issues(*, owner, repo)\n")
        self.check("mcp.help(mcp.time), repr(mcp.time.now), repr(mcp.time.nope)", "(now(*, ), 'now(*, )', 'server `time` has no tool `nope`')\n")
        self.raises("mcp.help('nope')", "mcp.UnknownServer")
        self.raises("mcp.help('github.nope')", "mcp.UnknownTool")
        self.check("mcp.output('o_1')", "'all of it'\n")
        done = self.raises("mcp.output('o_2')", "mcp.MCPError", "no output `o_2`")
        self.check("try:\n    mcp.output('o_2')\nexcept mcp.MCPError as e:\n    print(e.kind)", "not_found\n")

    def test_completions(self):
        self.check("c = mcp.github.prompts.complete('greet', 'who', 'a', n=1)\nlist(c), c.has_more, c.total", "([\"{'prompt': 'greet'}\", 'who', 'a', \"{'n': '1'}\"], True, 9)\n")
        self.check("mcp.github.resources.complete('a://{n}', 'n')", "[\"{'resource': 'a://{n}'}\", 'n', '', '{}']\n")

    def test_subscriptions(self):
        self.check("with mcp.github.resources.subscribe('a://1') as s: print(s, s.wait(0), s.wait(), s.wait(1))\ns.close()", "<subscription to a://1> 0 3 3\n")

    def test_log_messages(self):
        self.check("found = mcp.logs(mcp.github)\nfound[0].data, found.dropped, len(mcp.logs('x'))", "('github', 4, 1)\n")

    def test_resources_and_prompts(self):
        self.check("r = mcp.github.resources.list()\nr[0].uri, r.templates[0].uriTemplate", "('a://1', 'a://{n}')\n")
        self.check("mcp.github.resources.read('a://1')['a']", "[1]\n")
        self.check("mcp.github.resources.read('a://2').bytes", "b'\\x00\\xff'\n")
        self.check("len(mcp.github.resources.read('a://3'))", "2\n")
        self.check("mcp.github.prompts.list()[0].name", "'greet'\n")
        self.check("mcp.github.prompts.get('greet', who='me', n=1).messages[0].content", "{'who': 'me', 'n': '1'}\n")

    def test_runtime(self):
        self.check("from mcp import runtime\nruntime.discovered_servers()", "('github', 'time', 'my-files')\n")
        self.check("runtime.discovered_servers(detailed=True)[0]", "{'name': 'github', 'description': 'Issues. And pulls.'}\n")
        self.check("runtime.list_servers_sync() == await runtime.list_servers() == LOADED_MCP_SERVERS", "True\n")
        self.check("[(a.name, a.alias) for a in runtime.list_tools_sync('time')] == [(a.name, a.alias) for a in await runtime.list_tools('time')]", "True\n")
        self.check("sorted((await runtime.list_tools('time'))[0])", "['alias', 'description', 'inputSchema', 'input_schema', 'name']\n")
        self.check("sorted(runtime.list_tools_sync('time')[0])", "['alias', 'description', 'input_schema', 'name']\n")
        self.check("d = runtime.describe_server('my_files')\nd.name, d.alias, d.tools[0].name, d.cwd", "('my-files', 'my_files', 'read', None)\n")
        self.check("[d.name for d in runtime.list_loaded_server_metadata()]", "['github', 'time', 'my-files']\n")
        self.check("len(runtime.query_tool_docs_sync('github')), len(await runtime.query_tool_docs('github'))", "(7, 7)\n")
        one = "{'server': 'github', 'serverAlias': 'github', 'tool': 'echo', 'toolAlias': 'echo', 'description': 'Does echo. And more.', 'signature': 'echo(*, )'}"
        self.check("runtime.query_tool_docs_sync('github', 'echo')", f"[{one}]\n")
        self.check("await runtime.query_tool_docs('github', 'echo')", f"{one}\n")
        self.check("(await runtime.query_tool_docs('github', 'get_sum', detail='full')).inputSchema.properties.cik_A", "{}\n")
        self.check("[d.tool for d in runtime.search_tool_docs_sync('issues', limit=3)]", "['list_issues']\n")
        self.check("(await runtime.search_tool_docs('issues', detail='full'))[0].inputSchema.required", "['owner']\n")
        self.check("await runtime.call_tool('github', 'echo', {'a': 1})", "{'a': 1}\n")
        self.check("runtime.capability_summary()", "the manual\nof two lines\n")
        self.raises("runtime.query_tool_docs_sync('github', detail='some')", "mcp.BadArguments")
        self.assertIn("did you mean", self.raises("runtime.query_tool_docs_sync('github', 'ecko')", "mcp.UnknownTool").message)
        self.raises("runtime.list_tools_sync('nope')", "mcp.UnknownServer")
        self.raises("runtime.save_tool", "AttributeError")
        self.check("sorted(dir(runtime))[0], runtime.MCPError is mcp.MCPError", "('MCPError', True)\n")


class Values(Calls):
    def test_objects(self):
        self.check("x = mcp.github.list_issues(owner='o')[0]\nx['title'], x.title, x.user.login", "('first', 'first', 'é')\n")
        self.check("x.html_url, x['items'], sorted(x.keys())", "('u', 3, ['html-url', 'items', 'title', 'user'])\n")
        self.check("x.new = 1\nx['new'], isinstance(x, dict), len(x.items())", "(1, True, 5)\n")
        self.check("import json, copy, pickle\ny = pickle.loads(pickle.dumps(x))\ny == x == copy.deepcopy(x), json.loads(json.dumps(y)) == x", "(True, True)\n")
        self.assertIn("it has title, items", self.raises("x.titel", "AttributeError").message)
        self.check("hasattr(x, '__len__'), hasattr(x, 'nope')", "(True, False)\n")
        self.check("import pprint\npprint.pprint(mcp.github.echo(a=1))", "{'a': 1}\n")

    def test_keys_named_like_methods(self):
        names = "clear copy get items keys pop popitem setdefault update values".split()
        for value in ([1, 2], {"a": 1}, "text", 7, 2.5, None, True, [], {}):
            self.check(f"r = mcp.github.echo(**{{n: {value!r} for n in {names}}})", "")
            self.check(f"all(getattr(r, n) == {value!r} and isinstance(getattr(r, n), type({value!r})) for n in {names})", "True\n")
            # Libraries see a dict, whatever its keys are.
            self.check(
                f"""
                import collections, copy, csv, io, json, pickle, pprint, string
                whole = {{n: {value!r} for n in {names}}}
                def same(**named): return named
                writer = csv.DictWriter(io.StringIO(), {names})
                pprint.pprint(r, io.StringIO())
                new = dict(r, extra=1)
                new.update(r)
                print(
                    dict(r) == whole, {{**r}} == whole, same(**r) == whole, json.loads(json.dumps(r)) == whole,
                    json.loads(json.dumps([r], indent=1)) == [whole], list(r) == {names}, len(r), new["extra"],
                    copy.copy(r) == copy.deepcopy(r) == whole, pickle.loads(pickle.dumps(r)) == whole,
                    collections.ChainMap(r)["items"] == r["items"], string.Template("$items").substitute(r) == str(r["items"]),
                    writer.writerow(r) > 10, collections.UserDict(r) == whole, r == whole, repr(r) == repr(whole),
                    mcp.github.echo(a=r)["a"] == whole, (await mcp_github.echo(a=r))["a"] == whole,
                )
                """,
                "True True True True True True 10 1 True True True True True True True True True True\n",
            )
        # The value of most types is the method too, for code that walks over any object.
        self.check("r = mcp.github.echo(items=[3, 4], get={'a': 1}, pop=12)\nr.items[0], r.items + [5], r.get.a, r.pop + 1", "(3, [3, 4, 5], 1, 13)\n")
        self.check("[k for k, v in r.items()], r.get('pop'), r.get('x', 2), r.pop('get').a", "(['items', 'get', 'pop'], 12, 2, 1)\n")
        self.check("r.items.append(5)\nr['items'], r.items is r['items'], type(pickle.loads(pickle.dumps(r))['items']) is list", "([3, 4, 5], True, True)\n")
        self.check("sum(one.values[0] for one in [mcp.github.echo(values=[n]) for n in (1, 2)])", "3\n")
        self.check("mcp_github.echo(items=[1]).items[0], (await mcp_github.echo(items=[2])).items", "(1, [2])\n")
        self.check("r = mcp.github.echo(a=1)\nlist(r.items()), r.get('a'), r.copy(), mcp.Record.keys(r)", "([('a', 1)], 1, {'a': 1}, dict_keys(['a']))\n")

    def test_text(self):
        self.check("x = mcp.github.a_b()\nx, x.upper(), x.text, isinstance(x, str), x + '!'", "('underscore', 'UNDERSCORE', 'underscore', True, 'underscore!')\n")
        self.check("x.content[0].text, x.raw, x.images, type(x.text) is str", "('underscore', {'content': [{'type': 'text', 'text': 'underscore'}], 'isError': False}, (), True)\n")
        self.check("import json, pickle, copy\njson.dumps([x]), {x: 1}['underscore'], type(pickle.loads(pickle.dumps(x))) is str, copy.deepcopy(x) == x", "('[\"underscore\"]', 1, True, True)\n")
        self.broker.instead["call"] = {"value": "a\nb", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        self.check("x = mcp.github.a_b()\nx, [one.text for one in x.content]", "('a\\nb', ['a', 'b'])\n")

    def test_arguments(self):
        self.check("from pathlib import Path\nimport datetime", "")
        self.check("mcp.github.echo(a={1}, b=Path('/x'), c=datetime.date(2020, 1, 2), d=(1, 2))", "{'a': [1], 'b': '/x', 'c': '2020-01-02', 'd': [1, 2]}\n")
        self.check("mcp.github.echo(a=mcp_github.echo(b=1))", "{'a': {'b': 1}}\n")
        self.check(
            """
            from dataclasses import dataclass, field
            from decimal import Decimal
            from enum import Enum, IntEnum
            from uuid import UUID
            class Colour(Enum): RED = "red"
            class Level(IntEnum): HIGH = 3
            @dataclass
            class Part: name: str
            @dataclass
            class Whole:
                parts: list
                colour: Colour = Colour.RED
            """,
            "",
        )
        self.check("mcp.github.echo(a=Decimal('1.50'), b=Decimal(10) ** 20, c=Decimal('-2E+3'))", "{'a': 1.5, 'b': 100000000000000000000, 'c': -2000}\n")
        self.check("mcp.github.echo(a=Whole([Part('x')]), b=Level.HIGH)", "{'a': {'parts': [{'name': 'x'}], 'colour': 'red'}, 'b': 3}\n")
        self.check("mcp.github.echo(a=datetime.timedelta(minutes=1), b=UUID(int=1), c={'x': 1}.keys(), d=range(2), e=frozenset())", "{'a': 60.0, 'b': '00000000-0000-0000-0000-000000000001', 'c': ['x'], 'd': [0, 1], 'e': []}\n")
        self.check("mcp.github.echo(a=datetime.datetime(2020, 1, 2, 3, 4))", "{'a': '2020-01-02T03:04:00'}\n")
        for value in ("Decimal('nan')", "Whole", "Colour", "Decimal"):
            self.raises(f"mcp.github.echo(a={value})", "mcp.BadArguments")
        self.assertIn("base64", self.raises("mcp.github.echo(a=b'x')", "mcp.BadArguments").message)
        for value in ("float('nan')", "object()", "'\\udc80'", "(lambda l: l.append(l) or l)([])"):
            self.raises(f"mcp.github.echo(a={value})", "mcp.BadArguments")
        self.check("mcp.github.echo(a='\\U0001f600\\0\\u2028', **{'é': 1})", "{'a': '\U0001f600\\x00\\u2028', 'é': 1}\n")

    def test_large(self):
        self.check("len(mcp.github.echo(a='é' * 500_000)['a'])", "500000\n")
        self.check("len(mcp.github.big())", f"{5 << 20}\n")
        self.check("len(await mcp_github.big()), len(await mcp_github.echo(a='x' * 1_000_000))", f"({5 << 20}, 1)\n")
        done = self.raises("mcp.github.echo(a='x' * 9_000_000)", "mcp.LimitExceeded")
        self.assertIn("at most 8388608 are allowed", done.message)
        self.raises("mcp_github.echo(a='x' * 9_000_000)", "mcp.LimitExceeded")
        self.check("mcp.github.echo()", "{}\n")

    def test_more_than_text(self):
        done = self.shim.run("x = mcp.github.image()\nx")
        self.assertEqual(done.images, [b"p" + PNG])
        self.assertEqual(done.out.splitlines()[:2], ["see", "<audio/wav, 3 bytes>"])
        self.check("x.text, len(x.content), x.images[0].bytes[:4], x.images[0].mime", "('see', 5, b'\\x89PNG', 'image/png')\n")
        self.check("x.audio[0].bytes, x.resources[0].bytes, x.resources[1].uri", "(b'\\x00\\x01\\x02', b'\\x00\\x01', 'a://1')\n")
        self.check("str(x).splitlines()[1]", "'<image/png, 40 bytes>'\n")
        self.assertEqual(self.shim.run("x.images[0]").images, [b"p" + PNG])
        self.assertEqual(self.shim.run("mcp_github.image()").images, [b"p" + PNG])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.png")
            self.check(f"x.save({path!r})", f"{path!r}\n")
            self.assertEqual(Path(path).read_bytes(), PNG)


class Errors(Calls):
    def test_a_tool_that_fails(self):
        done = self.raises("def f():\n    return mcp.github.fail(a=1)\nf()", "mcp.ToolError")
        self.assertEqual(done.message, "github.fail: no such repo\nhint: check the name")
        # The user's frames and no others.
        lines = [line.strip() for line in done.err.splitlines() if line.startswith("  File")]
        self.assertEqual(lines, ['File "<cell 1>", line 3, in <module>', 'File "<cell 1>", line 2, in f'])
        code = "try:\n    mcp.github.fail()\nexcept mcp.ToolError as e:\n    print(e.kind, e.message, e.hint, e.server, e.tool, e.content[0].text, e.structured.code)"
        self.check(code, "tool no such repo check the name github fail no such repo 5\n")
        done = self.raises("await mcp_github.fail()", "mcp.ToolError")
        self.assertNotIn("<mcp>", done.err)
        done = self.raises("import asyncio\nasync def g():\n    await asyncio.gather(mcp_github.fail(), mcp_github.echo())\nasyncio.run(g())", "mcp.ToolError")
        self.assertNotIn("<mcp>", done.err)

    def test_kinds(self):
        kinds = {
            **{"tool": "ToolError", "unknown_server": "UnknownServer", "unknown_tool": "UnknownTool"},
            **{"bad_arguments": "BadArguments", "refused": "Refused", "unavailable": "ServerUnavailable"},
            **{"gone": "ServerGone", "timeout": "CallTimeout", "protocol": "ProtocolError"},
            **{"elicitation_required": "ElicitationRequired", "sign_in_needed": "SignInNeeded"},
            **{"tool_changed": "ToolChanged", "server_held": "ServerHeld"},
            **{"limit": "LimitExceeded", "cancelled": "MCPError", "internal": "MCPError", "new": "MCPError"},
        }
        for kind, name in kinds.items():
            code = f"try:\n    mcp.github.error(kind={kind!r})\nexcept mcp.{name} as e:\n    print(type(e).__name__, e.kind, e.message, e.code, e.data.a, isinstance(e, RuntimeError))"
            self.check(code, f"{name} {kind} words -32000 1 True\n")
        self.check("import pickle\ntry:\n    mcp.github.fail()\nexcept mcp.MCPError as e:\n    f = pickle.loads(pickle.dumps(e))\nprint(repr(f), f.kind, f.structured)", "ToolError('no such repo') tool {'code': 5}\n")

    def test_a_host_that_breaks(self):
        for form in ("mcp.github.garbage(how={how!r})", "await mcp_github.garbage(how={how!r})"):
            for how in ("text", "length", "shape", "utf8", "other id", "no id", "both", "error", "trailing", "deep"):
                if how == "other id" and "await" in form:
                    # For all the library knows, this answers a forgotten call; then the host closes the connection.
                    self.raises(form.format(how=how), "mcp.ServerGone")
                    continue
                done = self.raises(form.format(how=how), "mcp.MCPError")
                self.assertIn("cannot be read", done.message, how)
            self.raises(form.format(how="cut"), "mcp.ServerGone")
            self.raises(form.format(how="refused"), "mcp.LimitExceeded", "too long")
            self.check("mcp.github.echo(a=1), await mcp_github.echo(a=2)", "({'a': 1}, {'a': 2})\n")
        # The first of two is the answer, and the second belongs to no call.
        self.check("await mcp_github.garbage(how='two')", "1\n")
        self.raises("mcp.github.garbage(how='two')", "mcp.MCPError")
        self.check("mcp.github.echo(a=1), await mcp_github.echo(a=2)", "({'a': 1}, {'a': 2})\n")

    def test_a_lost_connection(self):
        for code in ("mcp.github.hang_up()", "mcp_github.hang_up()", "await mcp_github.hang_up()"):
            self.raises(code, "mcp.ServerGone")
            self.assertEqual(len([r for r in self.asked() if r["tool"] == "hang_up"]), 1, "not repeated")
            self.broker.requests.clear()
            self.check("mcp.github.echo(a=1), await mcp_github.echo(a=2)", "({'a': 1}, {'a': 2})\n")

    def test_a_connection_closed_at_rest(self):
        self.check("mcp.github.echo(a=1), await mcp_github.echo(a=2)", "({'a': 1}, {'a': 2})\n")
        self.check("import os, socket\nfor fd in range(4, 20):\n    try: socket.socket(fileno=os.dup(fd)).shutdown(2)\n    except OSError: pass")
        self.check("mcp.github.echo(a=1), await mcp_github.echo(a=2)", "({'a': 1}, {'a': 2})\n")
        self.check("mcp_github.echo(a=2)", "{'a': 2}\n")


class Module(Calls):
    def test_imports(self):
        self.check("import mcp\nmcp.github.echo(a=1)", "{'a': 1}\n")
        self.check("import mcp.servers.github as g\ng.echo(a=1)", "{'a': 1}\n")
        self.check("import mcp.servers.my_files\nmcp.servers.my_files.read(path='x')", "{'path': 'x'}\n")
        self.check("from mcp.servers.github import list_issues\nlist_issues(owner='o')[0].title", "'first'\n")
        self.check("from mcp.servers.github import *\nget_sum(cik_A=1), a_b_2 is not None, print is __builtins__.print, TOOL_MAP['a_b_2'], len(TOOLS)", "({'cik-A': 1}, True, True, 'a-b', 7)\n")
        self.check("from mcp.servers.github import print as p\np(a=1)", "{'a': 1}\n")
        self.check("async def main():\n    return await list_issues(owner='o'), list_issues(owner='o')[0].title\n(await main())[1]", "'first'\n")
        self.assertIn("did you mean", self.raises("import mcp.servers.githup", "ModuleNotFoundError").message)
        self.raises("import mcp.nope", "ModuleNotFoundError")
        self.raises("import mcp.servers.github.deeper", "ModuleNotFoundError")

    def test_from_code_that_a_cell_imports(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "helper.py").write_text("import mcp\ndef f():\n    return mcp.github.echo(a=1)\n")
            self.check("import helper\nhelper.f()", "{'a': 1}\n", shim=self.new(cwd=folder))
            # A thread cannot fetch the library, but can use it.
            shim = self.new(cwd=folder)
            code = "import threading\nthreading.Thread(target=lambda: print(mcp.github.echo())).start()\nx = 1"
            self.assertEqual(shim.run(code + "\nimport time\ntime.sleep(.2)").out, "{}\n")

    def test_beside_the_package_of_that_name(self):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "mcp"
            (package / "client").mkdir(parents=True)
            (package / "__init__.py").write_text("from .client.session import ClientSession\nfrom mcp import types\n__all__ = ['ClientSession']\nVERSION = 2\n")
            (package / "types.py").write_text("class Tool: pass\n")
            (package / "client" / "__init__.py").write_text("")
            (package / "client" / "session.py").write_text("from mcp.types import Tool\nfrom .. import types\nclass ClientSession: tool = types.Tool\n")
            shim = self.new(cwd=folder)
            self.check("from mcp import ClientSession\nClientSession.__module__", "'mcp.client.session'\n", shim=shim)
            self.check("import mcp.types\nmcp.types.Tool is ClientSession.tool, mcp.VERSION", "(True, 2)\n", shim=shim)
            self.check("import mcp.client.session as s\ns.ClientSession is mcp.ClientSession", "True\n", shim=shim)
            self.check("mcp.github.echo(a=1)", "{'a': 1}\n", shim=shim)
            self.check("from mcp.servers.github import echo\necho(a=1)", "{'a': 1}\n", shim=shim)
            self.check("mcp.McpError is mcp.MCPError", "True\n", shim=shim)
            self.raises("mcp.nope", "mcp.UnknownServer", shim=shim)
            # Without a host too.
            self.check("from mcp import ClientSession, types", shim=self.new(cwd=folder, env={}))


if __name__ == "__main__":
    unittest.main()
