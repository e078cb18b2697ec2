"""Names of Python, of the library and of servers; malformed answers; and every use of a call without `await`."""

import unittest

from broker import tool
from test_mcp import Calls


class Servers(Calls):
    def test_names_that_mean_something_else(self):
        for name, alias in (
            *(("class", "class_"), ("__init__", "__init__"), ("mcp", "mcp"), ("runtime", "runtime")),
            *(("find", "find"), ("servers", "servers"), ("call", "call"), ("keys", "keys"), ("None", "none_")),
            *(("json", "json"), ("print", "print"), ("MCPError", "mcperror"), ("Git-Lab", "git_lab"), ("2fa", "_2fa")),
        ):
            self.broker.add(name, "act", alias=alias)
            with self.subTest(name=name):
                shim = self.new()
                expected = f"[{name!r}, 'act', {{'a': 1}}]\n"
                self.check(f"mcp_servers[{name!r}].act(a=1)", expected, shim=shim)
                self.check(f"mcp_servers[{alias!r}].act(a=1)", expected, shim=shim)
                self.check(f"mcp.call({name!r}, 'act', {{'a': 1}})", expected, shim=shim)
                self.check(f"from mcp.servers.{alias} import *\n(await act(a=1)) if 0 else act(a=1)", expected, shim=shim)
                if name not in ("__init__", "keys"):
                    self.check(f"mcp.servers.{alias}.act(a=1)", expected, shim=shim)
                if name != "servers":
                    # In a first cell too.
                    self.check(f"await mcp_{alias}.act(a=1)", expected, shim=self.new())
        self.check("await mcp_class.act(a=1), await mcp_2fa.act()", "(['class', 'act', {'a': 1}], ['2fa', 'act', {}])\n")
        self.check("await mcp_Git_Lab.act(), Git_Lab.act()[0], git_lab.act()[0]", "(['Git-Lab', 'act', {}], 'Git-Lab', 'Git-Lab')\n")
        # Names of the library and of Python keep their meaning.
        self.check("from mcp import runtime\nruntime.list_servers_sync()[0], mcp.find('x').total, type(mcp.call).__name__", "('github', 7, 'function')\n")
        self.check("mcp_servers is mcp.servers, len(mcp_servers) == len(LOADED_MCP_SERVERS)", "(True, True)\n", shim=self.new())
        self.raises("json.act()", "NameError")
        self.raises("print.act()", "AttributeError")
        self.check("issubclass(mcp.ToolError, mcp.MCPError), mcp.McpError is mcp.MCPError, 'McpError' in dir(mcp)", "(True, True, False)\n")

    def test_by_index_and_in_a_first_cell(self):
        for code in ("github['get-sum'](**{'from': 1})", "x = 1\ngithub['get-sum'](**{'from': 1})"):
            self.check(code, "{'from': 1}\n", shim=self.new())
        self.raises("nobody['x']()", "NameError")
        self.check("x = [1]\nx[0], [1][0], 'a'[0]", "(1, 1, 'a')\n")

    def test_tools_of_any_name(self):
        names = "__class__", "__name__", "__init__", "self", "then", "toString", "_name", "print", "x y", "日本", "raw"
        self.broker.add("odd", *names)
        self.broker.tools["odd"] = [tool(name, alias="tool__name__" if name == "__name__" else name) for name in names]
        self.broker.tools["odd"][2]["alias"] = "__builtins__"
        self.broker.on_call = lambda request: {"value": [request["tool"], request["arguments"]]}
        for name in names:
            self.check(f"mcp.odd[{name!r}](self=1, name=2)", f"[{name!r}, {{'self': 1, 'name': 2}}]\n")
            self.check(f"await mcp.runtime.call_tool('odd', {name!r}, {{}})", f"[{name!r}, {{}}]\n")
        self.check("type(mcp.odd.__class__).__name__, mcp.odd.toString()", "('type', ['toString', {}])\n")
        self.check("from mcp.servers.odd import *\n__name__, print is __builtins__.print, then(), raw()", "('__main__', True, ['then', {}], ['raw', {}])\n")
        self.check("print(1)", "1\n")

    def test_parameters_of_any_name(self):
        for name in ("self", "name", "server", "positional", "arguments", "fields", "raw", "timeout", "cik-A", "Notion-Version", "__class__"):
            self.check(f"mcp.github.echo(**{{{name!r}: 1}}), await mcp_github.echo(**{{{name!r}: 1}})", f"({{{name!r}: 1}}, {{{name!r}: 1}})\n")
        self.check("mcp.github.echo(from_=1, class_=2, None_=3, x_=4, _=5)", "{'from': 1, 'class': 2, 'None': 3, 'x_': 4, '_': 5}\n")
        got = "mcp.github.prompts.get('greet', {args}).messages[0].content"
        self.check(got.format(args="name='Ada', self='x', from_='y'"), "{'name': 'Ada', 'self': 'x', 'from': 'y'}\n")
        self.check(got.format(args="{'from': [1]}, b=None"), "{'from': '[1]', 'b': 'null'}\n")
        self.raises(got.format(args="'Ada'"), "mcp.BadArguments")


class Raw(Calls):
    def test_the_whole_result(self):
        whole = "{'content': [], 'isError': False}\n"
        self.check("mcp.github.echo.raw(a=1)", whole)
        self.check("await mcp_github.echo.raw({'a': 1})", whole)
        self.assertEqual([r["arguments"] for r in self.asked()], [{"a": 1}] * 2)
        self.check("from mcp import runtime\nawait runtime.call_tool('github', 'echo', raw=True)", whole)
        self.check("x = mcp.github.image()\nisinstance(x, mcp.Result), x.raw.content == x.content, 'text' in x.raw", "(True, True, False)\n")

    def test_a_search_knows_aliases(self):
        found = {"server": "github", "tool": "a-b", "signature": "s", "description": ""}
        self.broker.instead["find"] = {"tools": [found], "total": 1}
        self.check("mcp.runtime.search_tool_docs_sync('x')[0].toolAlias", "'a_b_2'\n")


class MalformedAnswers(Calls):
    def test_answers_of_another_form(self):
        self.check("mcp.github.echo()", "{}\n")
        asks = {
            "servers": ("mcp.nope.x()", "list(mcp_servers)", "mcp.runtime.discovered_servers()", "await mcp.runtime.list_servers()"),
            "tools": ("mcp.github.list_issues('a')", "dir(mcp.github)", "await mcp.runtime.list_tools('github')"),
            "find": ("mcp.find('x')",),
            "help": ("mcp.help()", "mcp.help('github')", "mcp.help('github.echo')"),
            "call": ("mcp.github.echo()", "await mcp_github.echo()", "mcp_github.echo().x"),
            "resources": ("mcp.github.resources.list()",),
            "read_resource": ("mcp.github.resources.read('x')",),
            "prompts": ("mcp.github.prompts.list()",),
            "prompt": ("mcp.github.prompts.get('x')",),
            "output": ("mcp.output('x')",),
            "complete": ("mcp.github.prompts.complete('x', 'y')", "mcp.github.resources.complete('x', 'y')"),
            "subscribe": ("mcp.github.resources.subscribe('x')",),
            "changes": ("mcp.github.resources.subscribe('x').wait(0)",),
            "logs": ("mcp.logs('github')",),
        }
        for kind, codes in asks.items():
            for value in (5, True, [1], [{}], {}, {"tools": 1, "text": 1, "contents": {}, "rich": 1}, "" if kind != "help" else []):
                self.broker.instead = {kind: value}
                for code in codes:
                    with self.subTest(kind=kind, value=value, code=code):
                        done = self.raises(code, "mcp.MCPError")
                        self.assertIn("cannot be read", done.message)
                        self.assertNotIn("<mcp>", done.err)
        self.broker.instead = {}
        self.check("mcp.github.echo(a=1), await mcp_github.echo(a=2)", "({'a': 1}, {'a': 2})\n")

    def test_content_of_another_form(self):
        blocks = [1, None, {}, {"type": "image"}, {"type": "image", "data": 5}, {"type": "resource", "resource": 7}, {"type": "audio", "data": "!"}]
        self.broker.instead["call"] = {"rich": {"text": 5, "content": blocks}}
        self.check("x = mcp.github.image()\nx.text, len(x.content), [i.bytes for i in x.images], x.resources", "('5', 7, [b'', b''], [None])\n")
        self.broker.instead["call"] = {"rich": {"content": "no"}}
        self.check("mcp.github.image().content", "[]\n")


class UseWithoutAwait(Calls):
    def test_numbers(self):
        self.broker.tool_seven = lambda arguments: {"value": 7}
        self.broker.tool_text = lambda arguments: {"value": "ab"}
        self.check("p = mcp_github.seven()\np + 1.5, 1.5 + p, p * 2.0, p / 2, 2.0 / p, p - 0.5, 10 - p, 2 ** p, p ** 2, -p, abs(p), ~p, round(p)", "(8.5, 8.5, 14.0, 3.5, 0.2857142857142857, 6.5, 3, 128, 49, -7, 7, -8, 7)\n")
        self.check("p < 7.5, p >= 7.0, p == 7.0, p != 7, divmod(p, 2), p % 4, 9 % p, p // 2, p << 1, p | 8, sum([p, p]), max(p, 3), list(range(p))[-1], [*'abcdefgh'][p]", "(True, True, True, False, (3, 1), 3, 2, 3, 14, 15, 14, 7, 6, 'h')\n")
        self.check("s = mcp_github.text()\n'x' + s, s + 'x', s * 2, f'{s:>4}', s == 'ab', s == mcp_github.text()", "('xab', 'abx', 'abab', '  ab', True, True)\n")
        self.raises("mcp_github.text() + 1", "TypeError")

    def test_as_json(self):
        self.check("import json\np = mcp_github.echo(a=[1])\njson.dumps(p), json.dumps({'x': [p]}, indent=None)", "('{\"a\": [1]}', '{\"x\": [{\"a\": [1]}]}')\n")
        self.raises("json.dumps(object())", "TypeError", "Object of type object is not JSON serializable")
        self.raises("json.dumps(mcp_github.fail())", "mcp.ToolError")


if __name__ == "__main__":
    unittest.main()
