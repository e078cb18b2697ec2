// The Node shim: makes standard streams again that a cell has ended. Fetched before the next cell.
// Runs as the body of a function with the parameter `shim`.
"use strict";
const { Writable } = shim.own("stream");

shim.repairStreams = () => {
  shim.standard.ended = false;
  renew(1, "stdout");
  renew(2, "stderr");
};

// Replaces a stream, even one that still works: which one a cell has ended is unknown.
function renew(fd, name) {
  const old = shim.standard[name];
  if (!old) return;
  try {
    // Not a socket, because libuv accepts a descriptor only once.
    const stream = new Writable({
      decodeStrings: true,
      write(chunk, encoding, callback) {
        shim.put(fd, chunk);
        callback();
      },
    });
    stream.fd = fd;
    stream.on("close", () => {
      shim.standard.ended = true;
    });
    shim.standard[name] = stream;
    // The global console keeps the stream that it used first.
    if (console[`_${name}`] === old) console[`_${name}`] = stream;
  } catch {
    // The descriptor itself is closed, or a cell has replaced the stream.
  }
}
