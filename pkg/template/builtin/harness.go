---
name: harness
language: go
description: Calls a function with the arguments of each case and compares what it returns
entry: snippet_harness.go
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
{{(snippet .code).code}}
-- snippet_harness.go --
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

const sandboxKind = "call"

var sandboxFunction any = {{ident .function}}

const sandboxCases = {{quote (json (cases "call" .cases))}}

{{- if not (snippet .code).main}}

func main() {}
{{- end}}

#include go.go
