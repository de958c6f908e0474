---
name: harness
language: typescript
description: Calls a function with the arguments of each case and compares what it returns
entry: harness.ts
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
;export { {{index (split "." (ident .function)) 0}} as sandboxFunction }
-- harness.ts --
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

// load gives the snippet's function; the bundler or the compiler knows the module by this name.
async function load() {
  return (await import("./snippet.js")).sandboxFunction
}

#include javascript.js
