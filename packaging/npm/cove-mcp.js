#!/usr/bin/env node
// Starts the program of the package for this platform. Where Node can, it becomes that program; otherwise it stays beside
// it, passes signals on and ends the way it ends.
'use strict';

const os = require('node:os');
const path = require('node:path');

/** Returns the program's path, or undefined if npm has installed none. */
function findProgram() {
  try {
    const manifest = require.resolve(`cove-mcp-linux-${process.arch}/package.json`);
    return path.join(path.dirname(manifest), 'bin', 'cove');
  } catch {
    return undefined;
  }
}

function explainAbsence() {
  const lines = ['could not start cove'];
  if (process.platform === 'linux') {
    lines.push(
      `caused by: there is no program for ${process.arch} in this installation`,
      'hint: install it with optional dependencies (`npm install -g --include=optional cove-mcp`); x64 is published',
    );
  } else {
    lines.push(
      `caused by: Cove needs Linux, and this is ${process.platform}`,
      'hint: run it in WSL, in a Linux machine such as Lima, or in a container; see "macOS and Windows" in the README',
    );
  }
  console.error(lines.join('\n'));
  process.exit(1);
}

function start(program, args) {
  if (typeof process.execve === 'function') {
    process.execve(program, ['cove', ...args], process.env);
  }
  const { spawn } = require('node:child_process');
  const child = spawn(program, args, { argv0: 'cove', stdio: 'inherit' });
  // The terminal sends SIGINT to both. Cove has it already, and this process must not end before it.
  process.on('SIGINT', () => {});
  for (const signal of ['SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2']) {
    process.on(signal, () => child.kill(signal));
  }
  child.on('error', (error) => {
    console.error(`could not start cove\ncaused by: ${error.message}`);
    process.exit(1);
  });
  child.on('exit', (code, signal) => {
    process.exit(signal ? 128 + os.constants.signals[signal] : code);
  });
}

const program = findProgram();
if (program) {
  start(program, process.argv.slice(2));
} else {
  explainAbsence();
}
