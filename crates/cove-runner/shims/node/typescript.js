// The Node shim: TypeScript. Fetched for a cell whose name ends in `.ts`. Runs as the body of a function with the
// parameter `shim`.
//
// Node itself removes the types, from 22.13 on. It puts spaces in their place, so that lines and columns stay. An enum
// or a namespace is more than a type: such a cell is transformed, and its lines may move.
"use strict";
const { Error } = shim.globals;
const { stripTypeScriptTypes } = shim.own("module");

// Returns the code as JavaScript. Fails if it is not TypeScript, or if this Node has no such function.
shim.stripTypes = (code) => {
  // A cell of tests may put its own function there.
  const strip = stripTypeScriptTypes ?? shim.own("module").stripTypeScriptTypes;
  if (!strip) {
    const message = `TypeScript needs Node 22.13 or newer, and this is ${process.version}; write JavaScript without types`;
    throw new Error(message);
  }
  // Node warns that the function is experimental, which is nothing that a cell could change.
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return strip(code, { mode: "strip" });
  } catch (error) {
    if (error?.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw error;
    return strip(code, { mode: "transform" });
  } finally {
    process.emitWarning = emitWarning;
  }
};
