// Lists the errors in a log, with ES modules, top-level await and streams.
import { createInterface } from "node:readline";

const errors = [];
for await (const line of createInterface({ input: process.stdin })) {
  const entry = JSON.parse(line);
  if (entry.level === "error") errors.push(entry);
}
console.log(`${errors.length} errors`);
for (const { msg, code = "none" } of errors) console.log(`- ${msg} (${code})`);
