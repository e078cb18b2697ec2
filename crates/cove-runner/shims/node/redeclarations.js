// The Node shim: names that a cell declares in another way than an earlier cell did. Fetched for such a
// cell, after imports.js. Runs as the body of a function with the parameter `shim`.
//
// V8 lets a later cell declare a `const` again as `const`, a `let` or `class` as one of these, and a
// `var` or `function` as one of these. It refuses anything else before it runs any of the cell, so
// the shim can try again with the other kinds of declaration, one after another.
"use strict";
const { Map, Set } = shim.globals;
const KINDS = ["let", "const", "var"];
const WORDS = new Set(["let", "const", "var", "class", "function", "async", "import", "export"]);

// Returns the code to try next after this error, or null. `cell.tried` has the kind last tried for each
// name.
shim.redeclare = (cell, message) => {
  const name = /^Identifier '(.*)' has already been declared$/.exec(message)?.[1];
  const tokens = shim.tokenize(cell.source);
  cell.tried ??= new Map();
  // Declaring a name twice in one cell is an error with every kind.
  const lists = tokens.map((token, at) => (isDeclaration(token) ? names(tokens, at + 1) : []));
  if (lists.filter((list) => list.includes(name)).length > 1) return null;
  for (let next = (cell.tried.get(name) ?? -1) + 1; next < KINDS.length; next += 1) {
    cell.tried.set(name, next);
    // Assigning to a constant would fail.
    if (KINDS[next] === "const" && isAssigned(tokens, name)) continue;
    return rewrite(cell.source, tokens, cell.tried);
  }
  return null;
};

function isAssigned(tokens, name) {
  return tokens.some(({ text }, index) => {
    if (text !== name || [".", "?."].includes(tokens[index - 1]?.text)) return false;
    if (WORDS.has(tokens[index - 1]?.text)) return false;
    const [before, next, after] = [index - 1, index + 1, index + 2].map((at) => tokens[at]?.text);
    if (["++", "--"].includes(before) || ["++", "--"].includes(next)) return true;
    // `=`, but neither `==` nor `, name =` in a list of declarations; then `+=`, `**=`, `??=` and so on.
    if (next === "=") return after !== "=" && before !== ",";
    return "+-*/%&|^<>?".includes(next ?? " ") && [after, tokens[index + 3]?.text].includes("=");
  });
}

function rewrite(code, tokens, tried) {
  const edits = [];
  tokens.forEach((token, index) => {
    if (token.depth !== 0 || !WORDS.has(token.text) || tokens[index - 1]?.text === ".") return;
    if (isDeclaration(token)) {
      const kind = names(tokens, index + 1).find((name) => tried.has(name));
      if (kind) edits.push({ start: token.start, end: token.end, by: KINDS[tried.get(kind)] });
    } else if (token.text === "class" || token.text === "function") {
      const name = tokens[tokens[index + 1]?.text === "*" ? index + 2 : index + 1]?.text;
      const first = tokens[index - 1]?.text === "async" ? tokens[index - 1] : token;
      // Otherwise it is part of an expression, or already of the right kind.
      if (!tried.has(name) || !(first.fresh || isStart(tokens[tokens.indexOf(first) - 1]))) return;
      const by = `${KINDS[tried.get(name)]} ${name} = `;
      edits.push({ start: first.start, end: first.start, by });
      const { end } = tokens.find((at, place) => place > index && at.depth === 0 && at.text === "}");
      edits.push({ start: end, end, by: ";" });
    }
  });
  return shim.splice(code, edits);
}

function isDeclaration(token) {
  return token.depth === 0 && KINDS.includes(token.text);
}

function isStart(before) {
  return !before || before.text === ";" || before.text === "}";
}

// Returns the names that a `let`, `const` or `var` declares, and perhaps other names in its patterns.
function names(tokens, index) {
  const found = [];
  let binding = true;
  for (let at = index; at < tokens.length; at += 1) {
    const { text, kind, depth, fresh } = tokens[at];
    if (depth === 0 && (text === ";" || (fresh && at > index && WORDS.has(text)))) break;
    if (depth === 0 && text === "=") binding = false;
    else if (depth === 0 && text === ",") binding = true;
    else if (binding && kind === "word") found.push(text);
  }
  return found;
}
