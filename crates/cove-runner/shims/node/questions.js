// The Node shim: questions about code that a person is writing. Fetched for the first of them. Runs as the body
// of a function with the parameter `shim`.
//
// The shim compiles the code and never runs it. V8 evaluates the expression before a dot, and stops before a side effect.
"use strict";
const { Reflect, Set } = shim.globals;
const { Script } = shim.own("vm");
const { isProxy } = shim.own("util").types;
// As many names as fit into one answer.
const MOST = 500;
const LONGEST = 60;
const KEYWORDS =
  "async await break case catch class const continue debugger default delete do else export " +
  "extends false finally for function if import in instanceof let new null return static super " +
  "switch this throw true try typeof undefined var void while with yield";

shim.ask = (letter, code) => {
  try {
    return letter === 0x63 ? completeness(code) : completions(code);
  } catch {
    // A cell has broken a builtin that this needs.
    return "";
  }
};

function completeness(code) {
  const text = asScript(code);
  if (judge(text) === "whole" || judge(`(${text}\n)`) === "whole") return "complete";
  // `{ a: 1, b: 2` is the beginning of an object. The rest are ways to go on: with one more argument, behind the end of
  // a comment, a string or a `try`. Where one of them leads to the end of the text, that is all that was wrong.
  const starts = text.trimStart().startsWith("{") ? [text, `(${text}`] : [text];
  const goesOn = (start) =>
    judge(start) === "open" ||
    ["\n,", "\ncatch {"].some((more) => judge(start + more) === "open") ||
    ["\n*/", "\n'", '\n"'].some((more) => judge(start + more) !== "wrong");
  return starts.some(goesOn) ? "open" : "complete";
}

// Cells may have `import`, `export` and `await` at their top, and scripts may not: these are words that go on alike.
function asScript(code) {
  return code
    .replace(/^(\s*)import\b(?!\s*[(.])/gm, "$1const")
    .replace(/^(\s*)export\s+default\b/gm, "$1void")
    .replace(/^(\s*)export\b/gm, "$1")
    .replace(/\bfor\s+await\b/g, "for")
    .replace(/\bawait\b/g, "void");
}

function judge(text) {
  try {
    new Script(text, { filename: "cove:question" });
    return "whole";
  } catch (error) {
    return /^(Unexpected end of input|Unterminated template)/.test(error.message) ? "open" : "wrong";
  }
}

function completions(code) {
  const { 1: chain, 2: word, index } = /((?:[\w$]+\??\.)*)([\w$]*)$/.exec(code);
  if (code[index - 1] === ".") return "";
  const found = chain ? members(chain.replace(/\??\.$/, "")) : visible();
  const names = [...found].filter((name) => name.startsWith(word) && name.length <= LONGEST);
  return names.filter((name) => /^[\w$]+$/.test(name)).sort().slice(0, MOST).join("\n");
}

// Names that code at the top of a cell can use.
function visible() {
  const found = members("globalThis");
  const lexical = inspect("Runtime.globalLexicalScopeNames", {})?.names ?? [];
  for (const name of [...KEYWORDS.split(" "), ...lexical]) found.add(name);
  return found;
}

function members(expression) {
  const found = new Set();
  const options = { throwOnSideEffect: true, silent: true, objectGroup: "question" };
  const reply = inspect("Runtime.evaluate", { expression, ...options });
  const value = reply && !reply.exceptionDetails ? shim.fetch(reply.result) : undefined;
  inspect("Runtime.releaseObjectGroup", { objectGroup: "question" });
  if (value === undefined || value === null) return found;
  // The traps of a proxy are code.
  for (let at = Object(value); at !== null && !isProxy(at); at = Reflect.getPrototypeOf(at)) {
    for (const key of Reflect.ownKeys(at)) if (typeof key === "string") found.add(key);
  }
  return found;
}

function inspect(method, parameters) {
  let found;
  shim.post(method, parameters, (error, reply) => {
    found = reply;
  });
  return found;
}
