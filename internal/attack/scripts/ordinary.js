// A worker, a child, a timer and a file.
const { Worker } = require("worker_threads");
const { execFileSync } = require("child_process");
const fs = require("fs");
const w = new Worker("require('worker_threads').parentPort.postMessage(7)", { eval: true });
w.on("message", (n) => {
  const child = execFileSync("/bin/echo", ["child"]).toString();
  fs.writeFileSync("ordinary.txt", "x");
  fs.unlinkSync("ordinary.txt");
  setTimeout(() => console.log(n === 7 && child === "child\n" ? "ordinary" : "odd"), 5);
});
