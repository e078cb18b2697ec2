// Questions about code that a person is writing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { withShim } from "./driver.mjs";

const [COMPLETE, OPEN] = ["complete", "open"];

const checkAll = (cases) =>
  withShim(async (shim) => {
    for (const [code, expected] of cases) {
      assert.equal(await shim.ask("c", code), expected, code);
    }
  });

test(
  "brackets, strings, templates and comments",
  checkAll([
    ["", COMPLETE],
    ["1 + 1", COMPLETE],
    ["let x = 1;", COMPLETE],
    ["// it's (", COMPLETE],
    ["x // {", COMPLETE],
    ["function f() {", OPEN],
    ["function f() {\n  return 1\n\n", OPEN],
    ["function f() {\n  return 1\n}", COMPLETE],
    ["f(", OPEN],
    ["f(1", OPEN],
    ["f(1,\n2", OPEN],
    ["g(f(1", OPEN],
    ["[1,\n2]", COMPLETE],
    ["({a: 1})", COMPLETE],
    ["{ a: 1, b: 2 }", COMPLETE],
    ["{ a: 1, b: 2", OPEN],
    ["{ a: 1, b: [", OPEN],
    ["class A { #x = 1 }", COMPLETE],
    ["'it\\'s ('", COMPLETE],
    ["'joined \\", OPEN],
    ["'joined \\\n end'", COMPLETE],
    ["`a", OPEN],
    ["`a\nb`", COMPLETE],
    ["`${", OPEN],
    ["`${a}", OPEN],
    ["`${`${a}`}`", COMPLETE],
    ["`\\${`", COMPLETE],
    ["/* a", OPEN],
    ["/* a\n*/", COMPLETE],
    ["x = /[/'(]/g", COMPLETE],
    ["(a) / b / '('", COMPLETE],
    ["s.replace(/\\//g, '')", COMPLETE],
  ]),
);

test(
  "what must go on",
  checkAll([
    ["x =", OPEN],
    ["x =\n1", COMPLETE],
    ["x =>", OPEN],
    ["a &&", OPEN],
    ["a ?", OPEN],
    ["a.", OPEN],
    ["a\n  .b", COMPLETE],
    ["x++", COMPLETE],
    ["if (x)", OPEN],
    ["if (x) y()", COMPLETE],
    ["if (x) { y() } else", OPEN],
    ["for (const x of y)", OPEN],
    ["do { x() } while (y)", COMPLETE],
    ["try", OPEN],
    ["try { x() }", OPEN],
    ["try { x() }\ncatch (e) {}", COMPLETE],
    ["await", OPEN],
    ["await f()", COMPLETE],
    ["const r = await f(x, {", OPEN],
    ["for await (const x of y) {", OPEN],
    ["import {", OPEN],
    ["import {\n  a,\n} from 'x'", COMPLETE],
    ["import('x')", COMPLETE],
    ["import x from 'y'", COMPLETE],
    ["export const a = {", OPEN],
    ["export default {", OPEN],
  ]),
);

test(
  "mistakes are for the cell to show",
  checkAll([
    [")", COMPLETE],
    ["}", COMPLETE],
    ["'not closed", COMPLETE],
    ["f(1 2)", COMPLETE],
    ["const x", COMPLETE],
    ["0x", COMPLETE],
    ["return 1", COMPLETE],
    ["\0", COMPLETE],
  ]),
);

test(
  "asking runs nothing, before and between cells",
  withShim(async (shim) => {
    assert.equal(await shim.ask("c", "console.log(1); globalThis.asked = 1"), COMPLETE);
    await shim.check("typeof asked", "'undefined'\n");
    assert.equal(await shim.ask("c", "let asked = ("), OPEN);
    await shim.check("let asked = 5; asked", "5\n");
    assert.equal(await shim.ask("c", "f("), OPEN);
  }),
);

test(
  "a cell that comes right behind a question is run",
  withShim(async (shim) => {
    const answer = shim.ask("c", "f(");
    await shim.check("1 + 1", "2\n");
    assert.equal(await answer, OPEN);
    const second = shim.ask("n", "glob");
    await shim.check("1 + 2", "3\n");
    assert.match(await second, /globalThis/);
  }),
);

test(
  "names of variables, globals and keywords",
  withShim(async (shim) => {
    await shim.check("let alphaOne = 1; const alphaTwo = 2; var alphaThree = 3", "");
    assert.equal(await shim.ask("n", "f(alpha"), "alphaOne\nalphaThree\nalphaTwo");
    assert.equal(await shim.ask("n", "instan"), "instanceof");
    assert.equal(await shim.ask("n", "setImm"), "setImmediate");
    assert.equal(await shim.ask("n", "nothingLikeThis"), "");
  }),
);

test(
  "names of properties, of the prototype too",
  withShim(async (shim) => {
    await shim.check("const o = { own: { inner: 1 }, 'not a name': 1 }; const s = 'x'", "");
    assert.equal(await shim.ask("n", "o.ow"), "own");
    assert.equal(await shim.ask("n", "o.own.inn"), "inner");
    assert.equal(await shim.ask("n", "o?.own?.inn"), "inner");
    assert.equal(await shim.ask("n", "o.hasOwn"), "hasOwnProperty");
    assert.equal(await shim.ask("n", "s.toUpp"), "toUpperCase");
    assert.equal(await shim.ask("n", "o.not"), "");
    for (const unknown of ["nowhere.x", "f().x", "o.nowhere.x", "1.x", "."]) {
      assert.equal(await shim.ask("n", unknown), "", unknown);
    }
  }),
);

test(
  "completing has no side effects",
  withShim(async (shim) => {
    await shim.check("let count = 0; const o = { get next() { count += 1; return {}; } }", "");
    await shim.check("const p = new Proxy({}, { ownKeys() { count += 1; return []; } })", "");
    assert.equal(await shim.ask("n", "o.next.x"), "");
    assert.equal(await shim.ask("n", "p."), "");
    await shim.check("count", "0\n");
  }),
);

test(
  "answers are bounded, and cells may have broken everything",
  withShim(async (shim) => {
    await shim.check("for (let n = 0; n < 2000; n += 1) globalThis[`name${n}`] = n; undefined", "");
    assert.equal((await shim.ask("n", "name")).split("\n").length, 500);
    await shim.check("Array.prototype.filter = Set.prototype.add = undefined", "");
    assert.equal(await shim.ask("n", "name"), "");
    await shim.check("1 + 1", "2\n");
  }),
);
