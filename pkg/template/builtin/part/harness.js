// Runs the snippet against cases. KIND, FUNCTION, SNIPPET, CASES, PROGRAM and load come from the template.
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import { createRequire } from "node:module"
import * as os from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"

const MOST_BYTES = 8 << 20
const MOST_LINES = 200

async function findFunction() {
  let owner, found = await load()
  const names = FUNCTION.split(".").slice(1)
  for (const name of names) {
    // A method of a class needs an object, unless it is static.
    owner = typeof found === "function" && !(name in found) ? new found() : found
    found = owner?.[name]
  }
  if (typeof found !== "function") throw new Error(`harness: the snippet defines no function ${FUNCTION}`)
  return found.bind(owner)
}

// plain is what JSON has words for; anything else is an error.
function plain(value) {
  if (value === undefined) return null
  if (typeof value === "bigint") return String(value)
  if (value === null || ["number", "string", "boolean"].includes(typeof value)) return value
  if (value instanceof Set || ArrayBuffer.isView(value)) return Array.from(value, plain)
  if (Array.isArray(value)) return Array.from(value, plain)
  if (value instanceof Map) return Object.fromEntries(Array.from(value, ([k, v]) => [String(k), plain(v)]))
  if (typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, plain(v)]))
  throw new TypeError(`the result is a ${typeof value}, which cases can not express`)
}

function same(want, got, options) {
  if (typeof want !== typeof got || Array.isArray(want) !== Array.isArray(got)) return false
  if (typeof want === "number") return want === got || Math.abs(want - got) <= options.tolerance
  if (typeof want === "string") return clean(want, options) === clean(got, options)
  if (Array.isArray(want)) return want.length === got.length && want.every((w, i) => same(w, got[i], options))
  if (want && got && typeof want === "object") {
    const keys = Object.keys(want)
    return keys.length === Object.keys(got).length && keys.every((k) => Object.hasOwn(got, k) && same(want[k], got[k], options))
  }
  return want === got
}

function clean(text, options) {
  if (!options.ignore_trailing_space) return text
  return text.split("\n").map((line) => line.trimEnd()).join("\n").replace(/\n+$/, "")
}

// show writes JSON with sorted keys, and numbers that JSON does not know by their names.
function show(value, indent = "") {
  const inner = indent + "  "
  if (typeof value === "string" && indent === "") return value
  if (Array.isArray(value)) return value.length === 0 ? "[]" : `[\n${value.map((v) => inner + show(v, inner)).join(",\n")}\n${indent}]`
  if (value && typeof value === "object") {
    const keys = Object.keys(value).sort()
    return keys.length === 0 ? "{}" : `{\n${keys.map((k) => `${inner}${JSON.stringify(k)}: ${show(value[k], inner)}`).join(",\n")}\n${indent}}`
  }
  return typeof value === "number" ? (Object.is(value, -0) ? "-0" : String(value)) : JSON.stringify(value)
}

// child calls the function for one case, in a process of its own.
async function child(test, result) {
  let report
  const late = (error) => {
    fs.writeFileSync(result, JSON.stringify(failed(error)))
    process.exit(0)
  }
  process.on("uncaughtException", late)
  try {
    const got = plain(await (await findFunction())(...test.args))
    report = { ok: same(test.want, got, test), got: show(got), note: "wrong result" }
  } catch (error) {
    report = failed(error)
  }
  fs.writeFileSync(result, JSON.stringify(report))
  process.exit(0) // timers that the snippet left do not hold it up
}

function failed(error) {
  // The trace ends where the snippet does.
  const lines = String(error?.stack ?? error).split("\n")
  fs.writeSync(2, lines.filter((line) => !/^\s+at .*(harness\.(mjs|ts)|node:internal)/.test(line)).join("\n") + "\n")
  return { ok: false, note: String(error).split("\n")[0] }
}

function read(file) {
  const fd = fs.openSync(file, "r")
  const buffer = Buffer.alloc(Math.min(MOST_BYTES, fs.fstatSync(fd).size))
  const n = fs.readSync(fd, buffer, 0, buffer.length, 0)
  fs.closeSync(fd)
  return buffer.toString("utf8", 0, n)
}

// run runs one case; it gives what is wrong (or nothing), what the case gave and what it printed.
async function run(number, test, work) {
  const file = (name) => path.join(work, `${number}.${name}`)
  fs.writeFileSync(file("in"), test.stdin)
  const fds = [fs.openSync(file("in"), "r"), fs.openSync(file("out"), "w"), fs.openSync(file("err"), "w")]
  const args = KIND === "stdio" ? [...PROGRAM, ...test.args] : [process.argv[1]]
  const env = { ...process.env }
  if (args[0] === process.argv[1]) Object.assign(env, { SANDBOX_CASE: String(number), SANDBOX_RESULT: file("result") })
  const { code, signal, late } = await new Promise((resolve) => {
    const started = spawn(process.execPath, [...process.execArgv, ...args], { stdio: fds, env, detached: true })
    let late = false
    const end = () => {
      try {
        process.kill(-started.pid, "SIGKILL") // what the case left running, too
      } catch {}
    }
    const timer = setTimeout(() => { late = true; end() }, test.timeout_ms)
    started.on("error", (error) => resolve({ code: null, signal: error.message, late }))
    started.on("exit", (code, signal) => { clearTimeout(timer); end(); resolve({ code, signal, late }) })
  })
  fds.forEach((fd) => fs.closeSync(fd))
  const stdout = read(file("out")), stderr = read(file("err"))
  if (late) return { note: `timed out after ${test.timeout_ms} ms`, stdout, stderr }
  if (signal) return { note: `killed by ${signal}`, stdout, stderr }
  if (KIND === "call") {
    if (!fs.existsSync(file("result"))) return { note: `exited with code ${code} before the function returned`, stdout, stderr }
    const report = JSON.parse(fs.readFileSync(file("result"), "utf8"))
    return { note: report.ok ? "" : report.note, got: report.got, stdout, stderr }
  }
  const notes = []
  if (code !== test.exit_code) notes.push(`exit code ${code}, not ${test.exit_code}`)
  if (clean(test.want, test) !== clean(stdout, test)) notes.push("wrong output")
  return { note: notes.join("; "), got: stdout, stdout: "", stderr }
}

// differences is a unified diff of one hunk.
function differences(wantText, gotText) {
  const want = wantText.split("\n"), got = gotText.split("\n")
  let head = 0, tail = 0
  while (head < want.length && head < got.length && want[head] === got[head]) head++
  if (head === want.length && head === got.length) return []
  while (tail < want.length - head && tail < got.length - head && want.at(-1 - tail) === got.at(-1 - tail)) tail++
  const before = Math.max(0, head - 3), after = Math.max(0, tail - 3)
  const lines = [
    "--- want", "+++ got", `@@ -${before + 1},${want.length - after - before} +${before + 1},${got.length - after - before} @@`,
    ...want.slice(before, head).map((line) => " " + line),
    ...middle(want.slice(head, want.length - tail), got.slice(head, got.length - tail)),
    ...want.slice(want.length - tail, want.length - after).map((line) => " " + line),
  ]
  return shorten(lines)
}

// middle finds what two texts without common ends have in common: the longest common subsequence.
function middle(want, got) {
  const minus = (line) => "-" + line, plus = (line) => "+" + line
  if (want.length * got.length > 1e6) return [...want.map(minus), ...got.map(plus)]
  const common = Array.from({ length: want.length + 1 }, () => new Int32Array(got.length + 1))
  for (let i = want.length - 1; i >= 0; i--)
    for (let j = got.length - 1; j >= 0; j--)
      common[i][j] = want[i] === got[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1])
  const lines = []
  let i = 0, j = 0
  while (i < want.length || j < got.length) {
    if (i < want.length && j < got.length && want[i] === got[j]) { lines.push(" " + want[i]); i++; j++ }
    else if (j === got.length || (i < want.length && common[i + 1][j] >= common[i][j + 1])) lines.push(minus(want[i++]))
    else lines.push(plus(got[j++]))
  }
  return lines
}

function shorten(lines) {
  return lines.length <= MOST_LINES ? lines : [...lines.slice(0, MOST_LINES), `… ${lines.length - MOST_LINES} more lines`]
}

function quoted(title, text) {
  if (text === "") return []
  return [title + ":", ...shorten(text.replace(/\n+$/, "").split("\n")).map((line) => "  | " + line)]
}

async function main() {
  const print = (text) => process.stdout.write(text + "\n")
  const work = fs.mkdtempSync(path.join(os.tmpdir(), "cases-"))
  const details = []
  let bad = 0
  print(CASES[0].heading + "  RESULT     TIME  NOTE")
  for (const [number, test] of CASES.entries()) {
    const start = Date.now()
    const { note, got, stdout, stderr } = await run(number, test, work)
    const took = String(Date.now() - start)
    print(`${test.label}  ${note ? "FAIL" : "pass"}  ${took.padStart(6)} ms  ${note}`.trimEnd())
    if (!note) continue
    bad++
    details.push("", `FAIL ${test.name}: ${note}`)
    if (got !== undefined) details.push(...differences(show(test.want), got))
    details.push(...quoted("stdout", stdout), ...quoted("stderr", stderr))
  }
  fs.rmSync(work, { recursive: true, force: true })
  print([...details, "", `${CASES.length - bad} passed, ${bad} failed`].join("\n"))
  process.exitCode = bad ? 1 : 0
}

if (process.env.SANDBOX_CASE === undefined) {
  main()
} else {
  const test = CASES[Number(process.env.SANDBOX_CASE)], result = process.env.SANDBOX_RESULT
  delete process.env.SANDBOX_CASE
  delete process.env.SANDBOX_RESULT
  if (KIND === "call") child(test, result)
  else load()
}
