// An agent with the official TypeScript SDK. Usage: node agent.mjs REVISION (URL | COMMAND ARGUMENT...)
//
// It uses the tools as a client would, and prints "done". KEY in the environment is the key of a server.
import assert from "node:assert";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [revision, first, ...rest] = process.argv.slice(2);
const transport = first.startsWith("http:")
  ? new StreamableHTTPClientTransport(new URL(first), { requestInit: { headers: { Authorization: `Bearer ${process.env.KEY}` } } })
  : new StdioClientTransport({ command: first, args: rest, env: process.env, stderr: "inherit" });

// The SDK asks for its newest revision; ask for another one in its place.
const send = transport.send.bind(transport);
transport.send = (message, ...more) => {
  if (message.method === "initialize") message.params.protocolVersion = revision;
  return send(message, ...more);
};
let agreed;
const setVersion = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (version) => { agreed = version; setVersion?.(version) };

const client = new Client({ name: "test", version: "1" });
await client.connect(transport);
assert.equal(agreed, revision);

const { tools } = await client.listTools();
assert.equal(tools.length, 16);
// The SDK holds structured content against the output schema of its tool.
const call = async (name, args, options) => {
  const got = await client.callTool({ name, arguments: args }, undefined, options);
  return { ...got, text: got.content[0].text };
};
let got = await call("run_code", { language: "python", code: "print(6 * 7)" });
assert.match(got.text, /^ok, exit code 0, .*\nstdout:\n42\n/);
assert.equal(got.structuredContent.stdout.text, "42\n");
const { contents } = await client.readResource({ uri: got.structuredContent.uri });
assert.equal(JSON.parse(contents[0].text).verdict, "ok");
got = await call("run_code", { language: "python", code: "1 / 0" });
assert.match(got.text, /nonzero_exit.*\n.*ZeroDivisionError/);
got = await call("run_code", { language: "cobol", code: "1" });
assert.ok(got.isError);
await assert.rejects(client.readResource({ uri: "sandbox-run://runs/none" }));

const { session } = (await call("session_create", { language: "python" })).structuredContent;
await call("session_run", { session, code: "x = 41" });
assert.equal((await call("session_run", { session, code: "x + 1" })).structuredContent.value, "42");
assert.match((await call("session_close", { session })).text, /closed/);
assert.ok((await call("session_run", { session, code: "x" })).isError);

// A call that is cancelled once its run has begun ends the run.
const stop = new AbortController();
let run;
const cancelled = call("run_code", { language: "shell", code: "sleep 1000", timeout: 200 }, {
  signal: stop.signal, timeout: 120_000,
  onprogress: (p) => { run = p.message.match(/run=(\w+)/)[1]; stop.abort() },
});
await assert.rejects(cancelled);
if (first.startsWith("http:")) await call("cancel_run", { run }); // revisions before 2026-07-28 have no other way over HTTP
got = await call("get_output", { run, wait: 60 });
assert.equal(got.structuredContent.verdict, "cancelled");

await client.close();
console.log("done");
process.exit(0); // connections that are kept alive would delay the end
