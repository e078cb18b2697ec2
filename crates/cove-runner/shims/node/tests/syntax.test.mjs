// Tests how imports.js rewrites code, without a process.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import vm from "node:vm";
import { part } from "./driver.mjs";

const hook = () => {};
const own = createRequire(import.meta.url);
const shim = { globals: globalThis, own, hook, HOOK: "IMPORT", cwd: "/" };
vm.compileFunction(part("imports"), ["shim"])(shim);

const check = (code, expected) => assert.equal(shim.rewrite(code, "cell"), expected, code);
const same = (code) => check(code, code);

test("static imports", () => {
  check('import "x"', 'void (await IMPORT.from("x", []));');
  check("import a from 'x';b", 'const { "default": a } = await IMPORT.from(\'x\', ["default"]);b');
  check('import * as n from "x"', 'const n = await IMPORT.from("x", []);');
  check(
    'import d, * as n from "x"',
    'const n = await IMPORT.from("x", ["default"]), { "default": d } = n;',
  );
  check(
    'import d, { a, b as c, "e f" as g, } from "x"',
    'const { "default": d, "a": a, "b": c, "e f": g } = await IMPORT.from("x", ["default", "a", "b", "e f"]);',
  );
  check('import {} from "x"', 'void (await IMPORT.from("x", []));');
  check(
    'import j from "x" with { type: "json" };',
    'const { "default": j } = await IMPORT.from("x", ["default"], { with: { type: "json" } });',
  );
  check(
    'import {\n a,\n b\n} from\n"x"\nc',
    'const { "a": a, "b": b } = await IMPORT.from("x", ["a", "b"]);\n\n\n\n\nc',
  );
  check('import from from "x"', 'const { "default": from } = await IMPORT.from("x", ["default"]);');
  check('#!/usr/bin/node\nimport "x"', '#!/usr/bin/node\nvoid (await IMPORT.from("x", []));');
});

test("import() and import.meta", () => {
  check("import('x')", "IMPORT('x')");
  check("f(() => import (y))", "f(() => IMPORT (y))");
  check("`${import('x')}`", "`${IMPORT('x')}`");
  check("import.meta.url", "IMPORT.meta.url");
  check("a = { b: import('x') }", "a = { b: IMPORT('x') }");
  check("if (x) { import('y') }", "if (x) { IMPORT('y') }");
});

test("exports", () => {
  check("export const a = 1", "       const a = 1");
  check("export default function f() {}", " function f() {}");
  check("export default async function* f() {}", " async function* f() {}");
  check("export default { a }", "module.exports.default = { a }");
  check("export default class {}", "module.exports.default = class {}");
  check("export { a,\n b as c }; d", "\n d");
  same("export * from 'x'");
  same("export { a } from 'x'");
});

test("other code stays as it is", () => {
  for (const code of [
    "'import \"x\"'",
    '"\\"import(y)"',
    "`import(x) ${`import ${'import(y)'}`} import.meta`",
    "// import(x)\n/* import 'x' */",
    "/import(x)/.test(y)",
    "/[/]import(x)/",
    "if (a) /import(x)/.test(b)",
    "a.import(x)",
    "a?.import(x)",
    "class A { import(x) { return 1 } static async *import(y) {} get import() {} }",
    "({ import(x) { return 1 }, import: 2 })",
    "({ import: 1 }).import",
    "important(x); reimport(y)",
    "this.#import(x)",
    "import type",
    "import { a as } from 'x'",
    "import",
    "x = import",
    "'unfinished import('x)",
  ]) {
    same(code);
  }
});

test("divisions are not regular expressions", () => {
  const after = (code) => check(`${code}; import('x')`, `${code}; IMPORT('x')`);
  after("a / b; '/import(y)/'");
  after("f(a) / 2 / '/'");
  after('a[0] / 2; "/"');
  after("a++ / 2; '/'");
  after("({}) / 2; '/'");
  after("x = {} / 2; '/'");
  after("5 / 2; '/'");
  after("`x` / 2; '/'");
  after("{} /'/.test(a)");
  after("return_ / 2; '/'");
  after("a.return / 2; '/'");
  after("return /'/");
  after("x = y => /'/");
  after("while (a) /'/.test(b)");
  after("a ? /'/ : /\"/");
  after("1_000n / 0x1f / .5e-3 / 2; '/'");
});
