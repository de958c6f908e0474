---
name: harness
language: shell
description: Calls a shell function with the arguments of each case and compares what it prints
entry: harness.sh
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
-- harness.sh --
#!/usr/bin/env bash
# Runs snippet.sh against cases. Nothing but bash is needed.
LC_ALL=C.UTF-8
snippet=$(cd "${BASH_SOURCE[0]%/*}" 2>/dev/null && pwd || pwd)/snippet.sh

run_case() {
  source "$snippet" || return
  {{ident .function}} "$@"
}
wanted='result'

# A case: its number, name, label, limit in milliseconds, expected output, whether the space at the
# ends of lines counts, the expected exit code, the input, and the arguments.
all_cases() {
{{- range $i, $c := cases "stdio" .cases}}
  one_case {{$i}} {{quote $c.name}} {{quote $c.label}} {{$c.timeout_ms}} {{quote $c.want}} {{$c.ignore_trailing_space}} {{$c.exit_code}} {{quote $c.stdin}}
  {{- range $c.args}} {{quote .}}{{end}}
{{- end}}
}
heading={{quote (index (cases "stdio" .cases) 0).heading}}

#include shell.sh
