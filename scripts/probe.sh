#!/usr/bin/env bash
# Usage: probe.sh FILE
#
# Builds the conformance suite's probe as FILE, for machines and users without a compiler.
set -euo pipefail
source=$(dirname "${BASH_SOURCE[0]}")/../internal/conformance/testdata/probe/main.go.txt
work=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-run-probe.XXXXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$source" "$work/main.go"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$1" "$work/main.go"
