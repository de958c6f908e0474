---
name: stdio
language: shell
description: Runs a program on the input of each case and compares what it prints
entry: harness.sh
variables:
  code:
    description: the program
  cases:
    description: cases, as YAML or JSON
  shell:
    description: the shell that runs the program
    default: bash
---
-- {{(snippet .code).path}} --
{{.code}}
-- harness.sh --
#!/usr/bin/env bash
# Runs snippet.sh against cases. Nothing but bash is needed.
LC_ALL=C.UTF-8
snippet=$(cd "${BASH_SOURCE[0]%/*}" 2>/dev/null && pwd || pwd)/snippet.sh

run_case() {
  exec {{quote .shell}} "$snippet" "$@"
}
wanted='output'

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
