// The Node shim: names that a cell declares in another way than an earlier cell did. Fetched by such
// a cell, after imports.js. Run as the body of a function of `shim`.
//
// V8 lets a later cell declare a `const` again as `const`, a `let` or `class` as one of these, a
// `var` or `function` as one of these. The rest is refused before anything has run, and so can be
// tried again with the declaration written as the other kinds, one after another.
"use strict";
const { Map, Set } = shim.globals;
const KINDS = ["let", "const", "var"];
const WORDS = new Set(["let", "const", "var", "class", "function", "async", "import", "export"]);

// The code to try next after this error, or null. `cell.tried` is which names were tried how.
shim.redeclare = (cell, message) => {
  const name = /^Identifier '(.*)' has already been declared$/.exec(message)?.[1];
  const tokens = shim.tokenize(cell.source);
  cell.tried ??= new Map();
  // Twice in this cell is an error in every way.
  const lists = tokens.map((token, at) => (isDeclaration(token) ? names(tokens, at + 1) : []));
  if (lists.filter((list) => list.includes(name)).length > 1) return null;
  for (let next = (cell.tried.get(name) ?? -1) + 1; next < KINDS.length; next += 1) {
    cell.tried.set(name, next);
    // A constant could not be assigned to.
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
    // `=`, but neither `==` nor, of a list of declarations, `, name =`; then `+=`, `**=`, `??=`, …
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
      if (kind) edits.push([token.start, token.end, KINDS[tried.get(kind)]]);
    } else if (token.text === "class" || token.text === "function") {
      const name = tokens[tokens[index + 1]?.text === "*" ? index + 2 : index + 1]?.text;
      const first = tokens[index - 1]?.text === "async" ? tokens[index - 1] : token;
      // Else it is part of an expression, or of the kind that it should be already.
      if (!tried.has(name) || !(first.fresh || isStart(tokens[tokens.indexOf(first) - 1]))) return;
      edits.push([first.start, first.start, `${KINDS[tried.get(name)]} ${name} = `]);
      const end = tokens.findIndex(
        (at, place) => place > index && at.depth === 0 && at.text === "}",
      );
      edits.push([tokens[end].end, tokens[end].end, ";"]);
    }
  });
  let text = "";
  let copied = 0;
  for (const [start, end, by] of edits) {
    text += code.slice(copied, start) + by;
    copied = end;
  }
  return text + code.slice(copied);
}

function isDeclaration(token) {
  return token.depth === 0 && KINDS.includes(token.text);
}

function isStart(before) {
  return !before || before.text === ";" || before.text === "}";
}

// The names that a `let`, `const` or `var` declares, and perhaps some more of its patterns.
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
