// Runs a WebAssembly module with Node's own WASI: a command, or one of its exports. What is not the program's own output
// comes last on standard error, behind a line break and @@: results as bit patterns, what went to env.log, trapped or not.

import { readFileSync, writeSync } from "node:fs";
import { WASI } from "node:wasi";

const task = JSON.parse(process.argv[2]);
const wasi = new WASI({
  version: "preview1", args: task.args, env: task.env, preopens: task.preopens, returnOnExit: true,
});
const log = [];
const module = new WebAssembly.Module(readFileSync(task.wasm));
const env = { log: (value) => { log.push(value >>> 0); }, hook: () => {} };
const told = { results: [], log, trapped: false };

const bits = (value) =>
  typeof value === "bigint" ? BigInt.asUintN(64, value).toString(16) : (value >>> 0).toString(16);

try {
  const instance = new WebAssembly.Instance(module, { ...wasi.getImportObject(), env });
  if (task.invoke === null) {
    process.exitCode = wasi.start(instance);
  } else {
    const value = instance.exports[task.invoke]();
    told.results = (Array.isArray(value) ? value : value === undefined ? [] : [value]).map(bits);
  }
} catch (problem) {
  if (!(problem instanceof WebAssembly.RuntimeError)) throw problem;
  told.trapped = true;
}
writeSync(2, "\n@@" + JSON.stringify(told));
