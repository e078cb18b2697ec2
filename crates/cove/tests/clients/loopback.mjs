// Preloaded into servers that would listen on every address: they listen on loopback, and say at which port.

import { Server } from 'node:net';

const { listen } = Server.prototype;
Server.prototype.listen = function (port, ...rest) {
  this.once('listening', () => console.log(this.address().port));
  return listen.call(this, Number(port), '127.0.0.1', ...rest);
};
