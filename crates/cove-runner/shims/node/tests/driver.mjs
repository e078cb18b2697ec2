// Drives the shim as the runner does: a real node, pipes for its output, a socket on descriptor 3.
//
// The node is the one named by the environment variable NODE, or the one that runs the tests.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import {
  closeSync,
  constants,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const SHIM = join(import.meta.dirname ?? new URL(".", import.meta.url).pathname, "..");
export const NODE = process.env.NODE || process.execPath;
export const MAJOR = Number(
  execFileSync(NODE, ["-p", "process.versions.node.split('.')[0]"], { encoding: "utf8" }),
);
// Many shims run at once, perhaps on a busy machine.
const PATIENCE = 60_000;

export const part = (name) => readFileSync(join(SHIM, `${name}.js`), "utf8");
export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const string = (text) => {
  const bytes = Buffer.from(text);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
};

const message = (tag, body) => {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(body.length + 1);
  head.write(tag, 4);
  return Buffer.concat([head, body]);
};

// Reads the body of a D frame.
const parse = (body) => {
  const kind = String.fromCharCode(body[0]);
  const done = { kind };
  if (kind === "r") {
    const at = 5 + body.readUInt32BE(1);
    done.type = body.toString("utf8", 5, at);
    assert.equal(body.readUInt32BE(at), body.length - at - 4);
    done.message = body.toString("utf8", at + 4);
  } else if (kind === "x") {
    assert.equal(body.length, 5);
    done.code = body.readInt32BE(1);
  } else {
    assert.equal(body.length, 1);
  }
  return done;
};

export class Shim {
  constructor({ files = {}, stdin = "ignore", env = {} } = {}) {
    this.cwd = mkdtempSync(join(tmpdir(), "cove-node-"));
    for (const [name, text] of Object.entries(files)) this.write(name, text);
    this.count = 0;
    this.loads = [];
    this.status = null;
    this.buffer = Buffer.alloc(0);
    const [out, err] = [this.pipe("out"), this.pipe("err")];
    this.readers = [out.read, err.read];
    this.child = spawn(NODE, ["--no-force-async-hooks-checks", "-e", part("boot")], {
      cwd: this.cwd,
      env: { PATH: process.env.PATH, HOME: "/nonexistent", ...env },
      stdio: [stdin, out.write, err.write, "pipe"],
      // In a group of its own, as in the runner.
      detached: true,
    });
    closeSync(out.write);
    closeSync(err.write);
    this.ended = new Promise((resolve) => {
      this.child.on("exit", (code, signal) => {
        this.status = signal ?? code;
        this.waiting?.({ kind: "gone", status: this.status });
        resolve(this.status);
      });
    });
    this.socket = this.child.stdio[3];
    this.socket.on("error", () => {});
    this.socket.on("data", (bytes) => this.receive(bytes));
  }

  // Real pipes, because spawn() makes a socket for "pipe".
  pipe(name) {
    const path = join(this.cwd, `.${name}`);
    execFileSync("mkfifo", [path]);
    const read = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const write = openSync(path, constants.O_WRONLY);
    rmSync(path);
    return { read, write };
  }

  write(name, text) {
    const path = join(this.cwd, name);
    execFileSync("mkdir", ["-p", join(path, "..")]);
    writeFileSync(path, text);
  }

  receive(bytes) {
    this.buffer = Buffer.concat([this.buffer, bytes]);
    while (this.buffer.length >= 4) {
      const end = 4 + this.buffer.readUInt32BE();
      if (this.buffer.length < end) return;
      const frame = this.buffer.subarray(4, end);
      this.buffer = this.buffer.subarray(end);
      if (frame[0] === 0x4c) {
        const name = frame.toString("utf8", 5);
        this.loads.push(name);
        this.socket.write(message("L", string(part(name))));
      } else if (frame[0] === 0x41) {
        this.answered(frame.toString("utf8", 1));
      } else if (frame[0] === 0x49) {
        this.images.push(Buffer.from(frame.subarray(1)));
      } else {
        assert.equal(String.fromCharCode(frame[0]), "D");
        assert(this.waiting, "an unexpected D frame");
        this.waiting(parse(frame.subarray(1)));
      }
    }
  }

  // Reads the pipes. They hold everything that the code has written, because its writes block.
  drain() {
    this.readers.forEach((fd, index) => {
      const chunk = Buffer.alloc(65536);
      for (;;) {
        let count = 0;
        try {
          count = readSync(fd, chunk);
        } catch (error) {
          if (error.code !== "EAGAIN") throw error;
        }
        if (count === 0) return;
        this.output[index].push(Buffer.from(chunk.subarray(0, count)));
      }
    });
  }

  // Runs a cell. `interrupt` says after how many milliseconds to send SIGINT, once or several times. On a busy machine
  // the cell may not have begun by then, and an interrupt between cells does nothing: so more follow until it ends.
  // `hold` says for how many milliseconds nobody reads the cell's output.
  async run(code, { name, args = [], interrupt = [], hold = 0, patience = PATIENCE } = {}) {
    this.count += 1;
    this.output = [[], []];
    this.images = [];
    const count = Buffer.alloc(4);
    count.writeUInt32BE(args.length);
    const body = [string(name ?? `<cell ${this.count}>`), string(code), count, ...args.map(string)];
    let interrupts = 0;
    const send = () => {
      interrupts += 1;
      this.interrupt();
    };
    const held = performance.now() + hold;
    const done = new Promise((resolve, reject) => {
      this.waiting = resolve;
      this.timer = setTimeout(() => {
        this.drain();
        const text = Buffer.concat(this.output.flat()).toString();
        reject(new Error(`no end of ${JSON.stringify(code)}: ${text}`));
      }, patience);
    });
    const pump = setInterval(() => performance.now() < held || this.drain(), 2);
    const times = [interrupt].flat();
    const timers = times.map((after) => setTimeout(send, after));
    const again = times.length > 0 && setInterval(send, Math.max(...times) + 2000);
    this.socket.write(message("R", Buffer.concat(body)));
    try {
      const result = await done;
      result.interrupts = interrupts;
      this.drain();
      [result.out, result.err] = this.output.map((chunks) => Buffer.concat(chunks).toString());
      return result;
    } finally {
      this.waiting = null;
      clearTimeout(this.timer);
      clearInterval(pump);
      timers.forEach(clearTimeout);
      clearInterval(again);
    }
  }

  // Asks about code between two cells.
  ask(letter, code) {
    return new Promise((resolve) => {
      this.answered = resolve;
      this.socket.write(message("Q", Buffer.from(letter + code)));
    });
  }

  // To the group, as the runner does.
  interrupt() {
    process.kill(-this.child.pid, "SIGINT");
  }

  // Runs a cell that must succeed and print nothing to stderr. Returns its output.
  async out(code, options) {
    const { kind, out, err, ...rest } = await this.run(code, options);
    assert.deepEqual({ kind, err }, { kind: "c", err: "" }, JSON.stringify({ code, out, rest }));
    return out;
  }

  async check(code, expected, options) {
    assert.equal(await this.out(code, options), expected, code);
  }

  async close() {
    this.socket.end();
    const timer = setTimeout(() => this.child.kill("SIGKILL"), PATIENCE);
    const status = await this.ended;
    clearTimeout(timer);
    this.readers.forEach(closeSync);
    rmSync(this.cwd, { recursive: true, force: true });
    return status;
  }
}

// Calls `test` with a shim, which must exit normally afterwards.
export const withShim =
  (options, test = options) =>
  async () => {
    const shim = new Shim(options === test ? {} : options);
    try {
      await test(shim);
    } catch (error) {
      shim.child.kill("SIGKILL");
      await shim.close();
      throw error;
    }
    assert.equal(await shim.close(), 3);
  };
