---
name: stdio
language: javascript
description: Runs a program on the input of each case and compares what it prints
entry: harness.mjs
variables:
  code:
    description: the program
  cases:
    description: cases, as YAML or JSON
---
-- {{(snippet .code).path}} --
{{.code}}
-- harness.mjs --
// Runs the snippet against cases.
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import { createRequire } from "node:module"
import * as os from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"

const KIND = "stdio"
const FUNCTION = ""
const SNIPPET = path.join(path.dirname(fs.realpathSync(process.argv[1])), {{quote (snippet .code).path}})
const CASES = JSON.parse({{quote (json (cases "stdio" .cases))}})

const PROGRAM = [SNIPPET]
async function load() {}

#include javascript.js
