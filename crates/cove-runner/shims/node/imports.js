// The Node shim: `import` and `export` in a cell. Fetched for a cell with one of these words. Runs as the
// body of a function with the parameter `shim`.
//
// Code that the inspector evaluates is not a module, and Node refuses `import()` in it. So a static
// import becomes `const … = await`, and `import(` and `import.meta` get another name, under which the
// shim has put an import() that works from the working directory. Lines stay where they are. Code
// that this part cannot read stays as it is, and V8 reports what is wrong with it.
"use strict";
const { JSON, Math, Set, SyntaxError } = shim.globals;
const { createRequire } = shim.own("module");
const { resolve } = shim.own("path");
const { pathToFileURL } = shim.own("url");

const WORD = /[\p{ID_Start}$_#\\][\p{ID_Continue}$\\\u200c\u200d]*/uy;
const NUMBER = /(?:0[xob][\da-f_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:e[+-]?[\d_]+)?)n?/iy;
const PUNCTUATION = /=>|\+\+|--|\?\.(?!\d)|\.\.\.|[^]/y;
// After these a `/` begins a regular expression.
const OPERATORS = new Set(
  "return typeof case in of delete void throw new else do instanceof yield await".split(" "),
);
const CONDITIONS = new Set(["if", "while", "for", "with"]);

shim.rewrite = (code, name) => {
  const filename = resolve(shim.cwd, name);
  const require = createRequire(filename);
  shim.hook.meta = {
    __proto__: null,
    dirname: shim.cwd,
    filename,
    url: pathToFileURL(filename).href,
    resolve(specifier) {
      const found = require.resolve(specifier);
      return found.startsWith("/")
        ? pathToFileURL(found).href
        : `node:${found.replace("node:", "")}`;
    },
  };
  try {
    return rewrite(code, shim.tokenize(code));
  } catch {
    return code;
  }
};

// For a static import, which fails if the module lacks a name.
shim.hook.from = async (specifier, names, options) => {
  const module = await shim.hook(specifier, options);
  for (const name of names) {
    if (name in module) continue;
    throw new SyntaxError(
      `The requested module '${specifier}' does not provide an export named '${name}'`,
    );
  }
  return module;
};

// Reading

// Returns a list of { kind, text, start, end }. Each token also says whether it is the first on its
// line (`fresh`), how many brackets it is in (`depth`), and, if it closes a bracket, whether a `/`
// after it divides (`divides`).
shim.tokenize = (code) => {
  const tokens = [];
  // Brackets that are open.
  const open = [];
  let at = 0;
  let fresh = true;

  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(code)?.[0];
  };
  const add = (kind, end, rest) => {
    const text = code.slice(at, end);
    tokens.push({ kind, text, start: at, end, fresh, depth: open.length, ...rest });
    at = end;
    fresh = false;
  };
  const endOfString = (quote) => {
    let end = at + 1;
    while (end < code.length && code[end] !== quote) end += code[end] === "\\" ? 2 : 1;
    return end + 1;
  };
  // Reads from a backtick, or the brace that ends a `${`, to the next of these.
  const template = () => {
    let end = at + 1;
    while (end < code.length && code[end] !== "`" && !code.startsWith("${", end)) {
      end += code[end] === "\\" ? 2 : 1;
    }
    const more = code[end] === "$";
    add("template", end + (more ? 2 : 1), { expression: more });
    if (more) open.push({ template: true });
  };
  const endOfExpression = () => {
    let end = at + 1;
    for (let inClass = false; end < code.length && (inClass || code[end] !== "/"); end += 1) {
      if (code[end] === "\\") end += 1;
      else if (code[end] === "[") inClass = true;
      else if (code[end] === "]") inClass = false;
      else if (code[end] === "\n") throw new SyntaxError("unfinished regular expression");
    }
    end += 1;
    while (/[a-z]/i.test(code[end] ?? "")) end += 1;
    return end;
  };

  if (code.startsWith("#!")) at = code.indexOf("\n") < 0 ? code.length : code.indexOf("\n");
  while (at < code.length) {
    const character = code[at];
    const last = tokens.at(-1);
    if (/\s/.test(character)) {
      if (/[\n\r\u2028\u2029]/.test(character)) fresh = true;
      at += 1;
    } else if (code.startsWith("//", at)) {
      while (at < code.length && !/[\n\r\u2028\u2029]/.test(code[at])) at += 1;
    } else if (code.startsWith("/*", at)) {
      const end = code.indexOf("*/", at + 2);
      if (end < 0) throw new SyntaxError("unfinished comment");
      if (/[\n\r\u2028\u2029]/.test(code.slice(at, end))) fresh = true;
      at = end + 2;
    } else if (character === '"' || character === "'") {
      add("string", endOfString(character));
    } else if (character === "`") {
      template();
    } else if (character === "}" && open.at(-1)?.template) {
      open.pop();
      template();
    } else if (character === "/" && beginsExpression(last, tokens.at(-2))) {
      add("expression", endOfExpression());
    } else if (match(WORD)) {
      add("word", at + match(WORD).length);
    } else if (match(NUMBER)) {
      add("number", at + match(NUMBER).length);
    } else {
      const text = match(PUNCTUATION);
      if ("([{".includes(text)) {
        add("punctuation", at + 1);
        open.push({ divides: text === "[" || !(text === "(" ? condition(tokens) : block(last)) });
      } else if (")]}".includes(text)) {
        const { divides } = open.pop() ?? {};
        add("punctuation", at + 1, { divides });
      } else {
        add("punctuation", at + text.length, { divides: text === "++" || text === "--" });
      }
    }
  }
  return tokens;
};

function beginsExpression(last, before) {
  if (!last) return true;
  if (last.kind === "punctuation") return !last.divides;
  if (last.kind === "template") return last.expression;
  return last.kind === "word" && OPERATORS.has(last.text) && before?.text !== ".";
}

// Returns whether the parenthesis just opened belongs to an `if`, `while` or the like.
function condition(tokens) {
  const [before, word] = [tokens.at(-3), tokens.at(-2)];
  if (word?.text === "await" && before?.text === "for") return true;
  return CONDITIONS.has(word?.text) && before?.text !== ".";
}

// Returns whether a brace after this token begins a block, and not an object.
function block(last) {
  if (!last) return true;
  if (last.kind === "punctuation") return [";", "{", "}", ")", "=>"].includes(last.text);
  return last.kind === "word" && !(OPERATORS.has(last.text) && !["else", "do"].includes(last.text));
}

// Writing

// Returns the code with these edits, from the first to the last: each puts `by` in the place of what is between `start`
// and `end`. Lines stay where they are.
shim.splice = (code, edits) => {
  const lines = (part) => part.split("\n").length - 1;
  let text = "";
  let copied = 0;
  for (const { start, end, by } of edits) {
    text += code.slice(copied, start) + by;
    text += "\n".repeat(Math.max(0, lines(code.slice(start, end)) - lines(by)));
    copied = end;
  }
  return text + code.slice(copied);
};

function rewrite(code, tokens) {
  const edits = [];
  tokens.forEach((token, index) => {
    if (token.kind !== "word" || token.start < edits.at(-1)?.end) return;
    if ([".", "?."].includes(tokens[index - 1]?.text)) return;
    const isStatement =
      token.depth === 0 && (token.fresh || [";", "}", undefined].includes(tokens[index - 1]?.text));
    const next = tokens[index + 1]?.text;
    let edit = null;
    if (token.text === "import" && (next === "(" || next === ".")) {
      const meta = next === "." && tokens[index + 2]?.text === "meta";
      const call = next === "(" && !isMethod(tokens, index);
      if (meta || call) edit = { start: token.start, end: token.end, by: shim.HOOK };
    } else if (token.text === "import" && isStatement) {
      edit = importStatement(code, tokens, index);
    } else if (token.text === "export" && isStatement) {
      edit = exportStatement(tokens, index);
    }
    if (edit) edits.push(edit);
  });
  return shim.splice(code, edits);
}

// Returns whether this is `import(x) {` in a class or an object.
function isMethod(tokens, index) {
  const before = tokens[index - 1]?.text;
  if (!["{", "}", ",", ";", "*", "async", "static", "get", "set"].includes(before)) return false;
  const { depth } = tokens[index];
  let close = index + 2;
  while (close < tokens.length && tokens[close].depth > depth) close += 1;
  return tokens[close + 1]?.text === "{";
}

// Returns a reader for the rest of a statement, token by token.
function reader(tokens, index) {
  let at = index + 1;
  return {
    peek: () => tokens[at],
    is: (text) => tokens[at]?.text === text,
    // Skips the next token if it has this text.
    skip: (text) => tokens[at]?.text === text && Boolean((at += 1)),
    take(...kinds) {
      if (!kinds.includes(tokens[at]?.kind)) throw new SyntaxError("not an import");
      at += 1;
      return tokens[at - 1].text;
    },
    end: () => tokens[at - 1].end,
  };
}

function importStatement(code, tokens, index) {
  const rest = reader(tokens, index);
  const names = [];
  let all = null;
  try {
    if (rest.peek()?.kind !== "string") {
      if (rest.peek()?.kind === "word") {
        names.push(["default", rest.take("word")]);
        if (!rest.is("from")) expect(rest, ",");
      }
      if (rest.skip("*")) {
        expect(rest, "as");
        all = rest.take("word");
      } else if (rest.skip("{")) {
        while (!rest.skip("}")) {
          const name = rest.take("word", "string");
          names.push([name, rest.skip("as") ? rest.take("word") : name]);
          if (!rest.is("}")) expect(rest, ",");
        }
      }
      expect(rest, "from");
    }
    const specifier = rest.take("string");
    const options = attributes(code, rest);
    rest.skip(";");
    const by = declaration({ specifier, names, all, options });
    return { start: tokens[index].start, end: rest.end(), by };
  } catch {
    return null;
  }
}

function expect(rest, text) {
  if (!rest.skip(text)) throw new SyntaxError("not an import");
}

// Returns `with { type: "json" }` as the second argument of import().
function attributes(code, rest) {
  const word = rest.peek();
  if (!["with", "assert"].includes(word?.text) || (word.text === "assert" && word.fresh)) return "";
  rest.take("word");
  const from = rest.peek()?.start;
  expect(rest, "{");
  while (!rest.skip("}")) rest.take("word", "string", "punctuation");
  return `, { ${word.text}: ${code.slice(from, rest.end())} }`;
}

function declaration({ specifier, names, all, options }) {
  const wanted = names.map(([name]) => (/^["']/.test(name) ? name : JSON.stringify(name)));
  const pattern = `{ ${names.map(([, local], at) => `${wanted[at]}: ${local}`).join(", ")} }`;
  const list = `[${wanted.join(", ")}]`;
  const call = `await ${shim.HOOK}.from(${specifier}, ${list}${options})`;
  if (all) return `const ${all} = ${call}${names.length ? `, ${pattern} = ${all}` : ""};`;
  return names.length ? `const ${pattern} = ${call};` : `void (${call});`;
}

// Removes `export`: no module imports from a cell, and later cells see its declarations anyway.
function exportStatement(tokens, index) {
  const { start, end } = tokens[index];
  const next = tokens[index + 1];
  if (["const", "let", "var", "function", "class", "async"].includes(next?.text)) {
    return { start, end, by: "      " };
  }
  if (next?.text === "default") {
    const at = tokens[index + 2]?.text === "async" ? index + 3 : index + 2;
    const kind = tokens[at]?.text;
    const name = tokens[tokens[at + 1]?.text === "*" ? at + 2 : at + 1];
    const named = ["function", "class"].includes(kind) && name?.kind === "word";
    const isDeclaration = named && name.text !== "extends";
    return { start, end: next.end, by: isDeclaration ? "" : "module.exports.default =" };
  }
  if (next?.text !== "{") return null;
  const rest = reader(tokens, index);
  try {
    while (!rest.skip("}")) rest.take("word", "string", "punctuation");
    if (rest.is("from")) return null;
    rest.skip(";");
    return { start, end: rest.end(), by: "" };
  } catch {
    return null;
  }
}
