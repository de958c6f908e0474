---
name: stdio
language: go
description: Runs a program on the input of each case and compares what it prints
entry: snippet_harness.go
variables:
  code:
    description: the program
  cases:
    description: cases, as YAML or JSON
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

const sandboxKind = "stdio"

var sandboxFunction any = nil

const sandboxCases = {{quote (json (cases "stdio" .cases))}}


#include go.go
