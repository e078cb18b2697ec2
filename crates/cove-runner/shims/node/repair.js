// The Node shim: standard streams made anew that a cell has ended. Fetched before the next cell.
// Run as the body of a function of `shim`.
"use strict";
const { Writable } = shim.own("stream");

shim.repair = () => {
  shim.standard.ended = false;
  renew(1, "stdout");
  renew(2, "stderr");
};

// Also one that is still good: which one was ended is not to be told.
function renew(fd, name) {
  const old = shim.standard[name];
  if (!old) return;
  try {
    // Not a socket: libuv takes a descriptor only once.
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
    // The global console has taken the old one when it was first used.
    if (console[`_${name}`] === old) console[`_${name}`] = stream;
  } catch {
    // The descriptor itself is closed, or a cell has put something else there.
  }
}
