"""The client of the conformance suite: one scenario, played with the real `cove`.

    conformance_client.py COVE URL

The suite serves the scenario at URL and names it in the environment. Everything happens as a person would do it, in a
home folder of its own: `servers add`, `servers refresh`, `tools show`, `tools call`, and `servers login` where a server
wants a sign-in. Every command is a process of its own, so nothing is known but what Cove keeps on disk. Scenarios with
questions go through `cove serve`, with a client behind it that accepts what a form would show. Ends with an error if a
step fails that must not.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

# The command that an error names.
SIGN_IN = re.compile(r"cove servers login (it( --scope '[^']*')?)")
# The document that the suite knows the client by.
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
MAX_SIGN_INS = 4
# The elicitation of a server needs a person, so code calls these tools for an agent.
QUESTIONS = {
    "elicitation-sep1034-client-defaults": ["test_client_elicitation_defaults"],
    "sep-2322-client-request-state": [
        "test_mrtr_echo_state",
        "test_mrtr_no_state",
        "test_mrtr_unrelated",
        "test_mrtr_no_result_type",
    ],
}
# Requests that only code can make.
FURTHER_REQUESTS = """
for resource in mcp.it.resources.list():
    mcp.it.resources.read(resource.uri)
for prompt in mcp.it.prompts.list():
    mcp.it.prompts.get(prompt.name)
"""
# What a client may choose itself.
VALUES = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


class Client:
    def __init__(self, cove, url, home):
        self.cove, self.url, self.home = cove, url, home
        self.scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
        self.context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
        self.sign_ins = 0
        browser = os.path.join(os.path.dirname(os.path.abspath(__file__)), "conformance_browser.py")
        self.env = {"HOME": home, "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "BROWSER": browser}

    def start(self, args, **more):
        return subprocess.Popen([self.cove, *args], env=self.env, cwd=self.home, text=True, **more)

    def run(self, *args, check=True):
        """Runs Cove. A command that needs a sign-in is run again after it."""
        while True:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            with self.start(args, **pipes) as process:
                output, errors = process.communicate()
            print(f"$ cove {' '.join(args)}\n{output}{errors}(code {process.returncode})", file=sys.stderr)
            command = SIGN_IN.search(output + errors)
            if process.returncode != 0 and command and self.sign_ins < MAX_SIGN_INS:
                self.sign_in(shlex.split(command[1]))
                continue
            if check and process.returncode != 0:
                sys.exit(f"`cove {args[0]} {args[1]}` failed")
            return output

    def sign_in(self, arguments):
        """Does what the error says: `cove servers login it`, with the options that it names."""
        self.sign_ins += 1
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self.start(["servers", "login", *arguments], **pipes) as process:
            output = process.communicate()[0]
        print(f"$ cove servers login {' '.join(arguments)}\n{output}(code {process.returncode})", file=sys.stderr)
        # After a sign-in the tools are listed, for which the server may want another one.
        if process.returncode != 0 and "signed in to `it`" not in output:
            sys.exit("the sign-in failed")

    def add(self):
        self.run("servers", "add", "it", "--url", self.url)
        oauth = self.oauth()
        if oauth:
            path = os.path.join(self.home, ".config/cove/servers.d/it.json")
            with open(path) as file:
                definition = json.load(file)
            definition["mcpServers"]["it"]["oauth"] = oauth
            with open(path, "w") as file:
                json.dump(definition, file)
        self.run("servers", "refresh", "it")

    def oauth(self):
        """What an operator writes into the definition of a server with clients of its own."""
        oauth = {name: self.context[name] for name in ["client_id", "client_secret"] if name in self.context}
        if self.scenario == "auth/basic-cimd":
            oauth["client_metadata_url"] = CLIENT_METADATA
        if self.scenario.startswith("auth/client-credentials-"):
            oauth["grant"] = "client_credentials"
        if "private_key_pem" in self.context:
            oauth["key_file"] = os.path.join(self.home, "key.pem")
            with open(os.open(oauth["key_file"], os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(self.context["private_key_pem"])
        return oauth

    def tools(self):
        names = [row["tool"] for row in json.loads(self.run("tools", "list", "--json")) if row["server"] == "it"]
        shown = [json.loads(self.run("tools", "show", f"it.{name}", "--json"))[0] for name in names]
        return {tool["name"]: tool["input_schema"] for tool in shown}

    def call(self, tool, arguments):
        self.run("tools", "call", f"it.{tool}", json.dumps(arguments))

    def play(self):
        self.add()
        tools = self.tools()
        if self.scenario in QUESTIONS:
            self.answer_questions(QUESTIONS[self.scenario])
        elif "toolCalls" in self.context:
            for call in self.context["toolCalls"]:
                self.call(call["name"], call["arguments"])
        elif self.scenario == "json-schema-ref-no-deref":
            pass  # Its tool cannot be called: it is about what a client does with the list.
        elif "json_schema_echo" in tools:
            self.call("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"]})
        else:
            for name, schema in tools.items():
                self.call(name, some_arguments(schema))
        if self.scenario == "http-standard-headers":
            self.run("run", "-c", FURTHER_REQUESTS)

    def answer_questions(self, tools):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": sys.stderr}
        with self.start(["serve"], **pipes) as server:
            agent = Agent(server)
            code = "\n".join(f"print(mcp.it.{tool}())" for tool in tools)
            result = agent.request("tools/call", {"name": "execute_code", "arguments": {"code": code, "timeout": 120}})
            server.stdin.close()
        print(json.dumps(result), file=sys.stderr)
        if result.get("isError"):
            sys.exit("code failed")


class Agent:
    """A client of `cove serve` on its standard input and output, with a person who accepts every form."""

    def __init__(self, server):
        self.server, self.count = server, 0
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}
        self.request("initialize", {**hello, "clientInfo": {"name": "agent", "version": "1"}})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.server.stdin.flush()

    def request(self, method, params):
        self.count += 1
        self.send({"id": self.count, "method": method, "params": params})
        for line in self.server.stdout:
            message = json.loads(line)
            if message.get("method") == "elicitation/create":
                content = accept(message["params"]["requestedSchema"]["properties"])
                self.send({"id": message["id"], "result": {"action": "accept", "content": content}})
            elif message.get("id") == self.count and "method" not in message:
                return message["result"]
        sys.exit("cove ended before it answered")


def accept(fields):
    """The form as it is shown: with the server's defaults filled in."""
    return {name: field.get("default", VALUES[field["type"]]) for name, field in fields.items()}


def some_arguments(schema):
    properties = schema.get("properties", {})
    return {name: VALUES[properties[name].get("type", "string")] for name in schema.get("required", [])}


def main():
    cove, url = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="scenario-") as home:
        Client(cove, url, home).play()


main()
