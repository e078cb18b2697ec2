//! What code-mode servers run in each table, in the language of each, and how their answers are read. It must not know
//! how a server is started.

use cove_testkit::mcp::ToolAnswer;
use serde_json::{Value, json};

/// How many calls a cell of the table *upstream call* makes: FastMCP allows no more.
pub(crate) const CALLS: u32 = 50;
/// How many calls a cell of the table *gathered calls* makes at once, and how long the tool takes.
pub(crate) const GATHERED_CALLS: usize = 10;
pub(crate) const TOOL_MILLISECONDS: u64 = 10;
/// What a cell of the table *output* writes: ten thousand lines.
pub(crate) const OUTPUT_BYTES: usize = 10_000_000;
/// Prints as much in every Python.
pub(crate) const PRINTING: &str = "for n in range(10_000): print('x' * 999)";

/// What a cell does, one for each table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellTask {
    Answer,
    Calls,
    GatheredCalls,
    Output,
}

/// How a server takes code, and the code of each task. A server that cannot do a task has no code for it.
#[derive(Debug)]
pub(crate) struct CodeDialect {
    tool: &'static str,
    argument: &'static str,
    language: Option<&'static str>,
    answer: &'static str,
    calls: Option<&'static str>,
    gathered: Option<&'static str>,
    output: &'static str,
    /// Returns what the code printed or returned.
    read: fn(&ToolAnswer) -> String,
    /// True if an answer stands for all of the output.
    is_whole: fn(&str) -> bool,
}

pub(crate) static COVE_PYTHON: CodeDialect = CodeDialect {
    tool: "execute_code",
    argument: "code",
    language: None,
    answer: super::CODE,
    calls: Some("print(sum(fixture.echo(a=n)['a'] for n in range(50)))"),
    gathered: Some(
        "import asyncio\nprint((await asyncio.gather(*[mcp_fixture.slow(ms=10) for n in range(10)])).count('done'))",
    ),
    output: PRINTING,
    read: ToolAnswer::text,
    is_whole: is_counted,
};

pub(crate) static COVE_NODE: CodeDialect = CodeDialect {
    language: Some("node"),
    answer: "console.log(6*7)",
    calls: Some(
        "{ let sum = 0; for (let n = 0; n < 50; n++) sum += (await mcp.fixture.echo({ a: n })).a; console.log(sum) }",
    ),
    gathered: Some(
        "console.log((await Promise.all(Array.from({ length: 10 }, () => mcp.fixture.slow({ ms: 10 })))).filter((text) => \
         text === 'done').length)",
    ),
    output: "for (let n = 0; n < 10_000; n++) console.log('x'.repeat(999))",
    ..COVE_PYTHON
};

/// Monty's subset of Python. What it prints does not reach the agent; the last value does.
pub(crate) static FASTMCP: CodeDialect = CodeDialect {
    tool: "execute",
    answer: "6*7",
    calls: Some("total = 0\nfor n in range(50):\n    total += (await call_tool('echo', {'a': n}))['a']\ntotal"),
    gathered: Some(
        "import asyncio\ntexts = await asyncio.gather(*[call_tool('slow', {'ms': 10}) for n in range(10)])\n\
         len([text for text in texts if text == 'done'])",
    ),
    output: "'\\n'.join(['x' * 999] * 10_000) + '\\n'",
    is_whole: is_complete,
    ..COVE_PYTHON
};

/// TypeScript, as the body of a function.
pub(crate) static UTCP_NPM: CodeDialect = CodeDialect {
    tool: "call_tool_chain",
    answer: "return 6*7",
    calls: Some("let sum = 0; for (let n = 0; n < 50; n++) sum += (await peer.fixture_echo({ a: n })).a; return sum"),
    gathered: Some(
        "const texts = await Promise.all(Array.from({ length: 10 }, async () => await peer.fixture_slow({ ms: 10 })));\n\
         return texts.filter((text) => text === 'done').length",
    ),
    output: "for (let n = 0; n < 10_000; n++) console.log('x'.repeat(999))",
    read: result_or_logs,
    is_whole: is_complete,
    ..COVE_PYTHON
};

/// RestrictedPython, as the body of a function. Its loops do not work, and nothing can be awaited.
pub(crate) static UTCP_PYPI: CodeDialect = CodeDialect {
    answer: "return 6*7",
    calls: Some("return sum(map(lambda n: peer.fixture_echo({'a': n}).get('a'), range(50)))"),
    gathered: None,
    output: "print('\\n'.join(['x' * 999] * 10_000))",
    ..UTCP_NPM
};

pub(crate) static RUN_PYTHON: CodeDialect = CodeDialect {
    tool: "run_python_code",
    argument: "python_code",
    calls: None,
    gathered: None,
    read: text_between_tags,
    is_whole: is_complete,
    ..COVE_PYTHON
};

impl CodeDialect {
    pub(crate) fn tool(&self) -> &'static str {
        self.tool
    }

    /// Returns the arguments of the call that does a task, or `None` if this server cannot do it.
    pub(crate) fn arguments(&self, task: CellTask) -> Option<Value> {
        let code = match task {
            CellTask::Answer => self.answer,
            CellTask::Calls => self.calls?,
            CellTask::GatheredCalls => self.gathered?,
            CellTask::Output => self.output,
        };
        let mut arguments = json!({(self.argument): code});
        if let Some(language) = self.language {
            arguments["language"] = json!(language);
        }
        Some(arguments)
    }

    /// Fails unless the answer is right, with its beginning.
    pub(crate) fn check(&self, task: CellTask, answer: &ToolAnswer) -> Result<(), String> {
        let text = (self.read)(answer);
        let is_right = match task {
            CellTask::Answer => text.trim() == "42",
            // 0 + 1 + … + 49
            CellTask::Calls => text.trim() == "1225",
            CellTask::GatheredCalls => text.trim() == GATHERED_CALLS.to_string(),
            CellTask::Output => (self.is_whole)(&text),
        };
        if is_right && !answer.is_error() { Ok(()) } else { Err(text.chars().take(300).collect()) }
    }
}

/// True if a bounded answer of Cove has the beginning and the number of characters that it leaves out.
fn is_counted(text: &str) -> bool {
    let kept: usize = text.lines().filter(|line| line.starts_with('x')).map(|line| line.len() + 1).sum();
    text.starts_with("xxx") && text.contains(&(OUTPUT_BYTES - kept).to_string())
}

fn is_complete(text: &str) -> bool {
    // Some leave the last end of a line out.
    text.bytes().filter(|&byte| byte == b'x').count() == OUTPUT_BYTES / 1000 * 999 && text.len() + 1 >= OUTPUT_BYTES
}

fn result_or_logs(answer: &ToolAnswer) -> String {
    let answer: Value = serde_json::from_str(&answer.text()).unwrap_or_default();
    let logs = answer["logs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if answer["result"].is_null() { logs.collect::<Vec<_>>().join("\n") } else { answer["result"].to_string() }
}

fn text_between_tags(answer: &ToolAnswer) -> String {
    let text = answer.text();
    let inside = text.split_once("<output>").and_then(|(_, rest)| rest.split_once("</output>"));
    inside.map_or(text.clone(), |(output, _)| output.to_owned())
}
