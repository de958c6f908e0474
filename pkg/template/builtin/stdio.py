---
name: stdio
language: python
description: Runs a program on the input of each case and compares what it prints
entry: harness.py
variables:
  code:
    description: the program
  cases:
    description: cases, as YAML or JSON
---
-- {{(snippet .code).path}} --
{{.code}}
-- harness.py --
"""Runs snippet.py against cases."""
KIND = "stdio"
FUNCTION = ""
CASES = {{quote (json (cases "stdio" .cases))}}
#include python.py
