// The Node shim: what can be done about errors that the sandbox itself causes. Fetched with the first error. Runs as
// the body of a function with the parameter `shim`. It decides by the code of an error.
"use strict";
const { readFileSync, readdirSync } = shim.own("fs");
// How many packages a hint names.
const MAX_NAMED = 25;

shim.hintFor = (error) => {
  try {
    return hint(error) ?? hint(error?.cause);
  } catch {
    // A cell has broken a builtin that this needs, or the error is not a usual one.
    return undefined;
  }
};

function hint(error) {
  if (error === null || typeof error !== "object") return undefined;
  const { code } = error;
  if (code === "MODULE_NOT_FOUND" || code === "ERR_MODULE_NOT_FOUND") return packages(error.message);
  if (["ENOTFOUND", "EAI_AGAIN"].includes(code) && error.hostname && !hasNetwork()) {
    return "the sandbox has no network; code can call the configured MCP servers, see `await mcp.help()`";
  }
  if (code === "ENOENT" && /^(\/(home|Users|root)\/|[A-Za-z]:[\\/])/.test(error.path)) {
    const folder = error.path.startsWith("/") ? error.path.slice(0, error.path.lastIndexOf("/")) : "FOLDER";
    return (
      "the sandbox does not see the files of this machine; the operator can show it a folder: " +
      `\`--mount ${folder}:/data\``
    );
  }
  return undefined;
}

function packages(message) {
  // Not a file beside the code. Node gives the name only in the message.
  const name = /^Cannot find (?:module|package) '((?:@[\w.-]+\/)?[A-Za-z0-9][\w.-]*)/.exec(message)?.[1];
  if (name && hasRules()) return `where the rules for the network allow it: \`npm install ${name}\``;
  if (!name || hasNetwork()) return undefined;
  let names = [];
  try {
    names = readdirSync("/node_modules").filter((entry) => !entry.startsWith("."));
  } catch {
    // No packages are installed.
  }
  const more = names.length > MAX_NAMED ? ` and ${names.length - MAX_NAMED} more` : "";
  const available = names.length ? `; available: ${names.slice(0, MAX_NAMED).join(", ")}${more}` : "";
  return (
    "no packages can be installed in the sandbox, because it has no network" +
    `${available}; the operator can add others: \`cove packages add --node ${name}\``
  );
}

// Returns whether rules let code reach hosts.
function hasRules() {
  return process.env.COVE_NETWORK !== undefined;
}

// Returns whether code may reach more than the sandbox's own loopback.
function hasNetwork() {
  if (hasRules()) return true;
  const lines = readFileSync("/proc/self/net/dev", "utf8").split("\n");
  return lines.some((line) => line.includes(":") && line.split(":")[0].trim() !== "lo");
}
