---
name: harness
language: python
description: Calls a function with the arguments of each case and compares what it returns
entry: harness.py
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
-- harness.py --
"""Runs snippet.py against cases."""
KIND = "call"
FUNCTION = {{quote (ident .function)}}
CASES = {{quote (json (cases "call" .cases))}}
#include python.py
