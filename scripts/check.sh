#!/usr/bin/env bash
# make check: formatting, wording, go vet and golangci-lint, shellcheck and the unit tests, for between two edits. Needs no root, no toolchain
# but Go, no daemon. Results of packages that have not changed come from Go's cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
scripts/lint.sh || status=$?
echo "unit tests"
CGO_ENABLED=0 go test -short ./... | { grep -v -e '^ok' -e 'no test files' || true; } || status=1
exit "$status"
