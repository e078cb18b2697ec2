// A server for HTTP/2 and HTTP/1.1 on loopback: `node http2_server.mjs KEY CERTIFICATE`. Prints its port, answers each request
// with the version that it came in, and ends with its standard input.

import fs from "node:fs";
import http2 from "node:http2";

const [key, cert] = process.argv.slice(2).map((path) => fs.readFileSync(path));
const server = http2.createSecureServer({ key, cert, allowHTTP1: true }, (request, response) => {
    response.end(`hello by ${request.httpVersion}\n`);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit()).resume();
