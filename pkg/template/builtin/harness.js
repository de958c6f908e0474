---
name: harness
language: javascript
description: Calls a function with the arguments of each case and compares what it returns
entry: harness.mjs
variables:
  code:
    description: the snippet that defines the function
  cases:
    description: cases, as YAML or JSON
  function:
    description: the function's name
    default: solve
---
-- {{(snippet .code).path}} --
{{.code}}
{{- $first := index (split "." (ident .function)) 0}}
{{- if eq (snippet .code).path "snippet.cjs"}}
;module.sandboxFunction = typeof {{$first}} === "undefined" ? undefined : {{$first}}
{{- else}}
;export { {{$first}} as sandboxFunction }
{{- end}}
-- harness.mjs --
// Runs the snippet against cases.
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import { createRequire } from "node:module"
import * as os from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"

const KIND = "call"
const FUNCTION = {{quote (ident .function)}}
const SNIPPET = path.join(path.dirname(fs.realpathSync(process.argv[1])), {{quote (snippet .code).path}})
const CASES = JSON.parse({{quote (json (cases "call" .cases))}})

// load gives the snippet's function, however it was written.
async function load() {
  {{- if eq (snippet .code).path "snippet.cjs"}}
  const require = createRequire(SNIPPET)
  const exported = require(SNIPPET)
  return require.cache[SNIPPET].sandboxFunction ?? exported[FUNCTION.split(".")[0]] ?? exported
  {{- else}}
  return (await import(pathToFileURL(SNIPPET))).sandboxFunction
  {{- end}}
}

#include javascript.js
