// The Node shim: standard streams made anew that a cell has ended. Fetched before the next cell.
// Run as the body of a function of `shim`.
"use strict";
const { Socket } = shim.own("net");

shim.repair = () => {
  for (const [fd, name] of [
    [1, "stdout"],
    [2, "stderr"],
  ]) {
    const old = shim.standard[name];
    if (!old || !(old.writableEnded || old.destroyed)) continue;
    try {
      const stream = new Socket({ fd, readable: false, writable: true });
      stream._handle.setBlocking(true);
      // As Node's own: it neither keeps the process alive nor closes the descriptor.
      stream._handle.unref();
      stream._destroy = (error, callback) => callback(error);
      stream._type = "pipe";
      stream.fd = fd;
      shim.standard[name] = stream;
      // The global console has taken the old one when it was first used.
      if (console[`_${name}`] === old) console[`_${name}`] = stream;
    } catch {
      // The descriptor itself is closed, or a cell has put something else there.
    }
  }
};
