#!/usr/bin/env bash
# Formatting, wording (wording.sh), golangci-lint (.golangci.yml) and shellcheck; go vet is `make vet`. Runs all of them
# before it fails, so that one run shows every problem.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${GOLANGCI_LINT_VERSION:?run me by make lint}"
status=0

echo "gofmt"
mapfile -t unformatted < <(find . \( -name .git -o -name bin -o -name testdata \) -prune -o -name '*.go' -print0 | xargs -0r gofmt -l)
if ((${#unformatted[@]})); then
	printf 'not formatted (gofmt -w): %s\n' "${unformatted[@]}"
	status=1
fi

echo "wording"
scripts/wording.sh || status=1

echo "golangci-lint $GOLANGCI_LINT_VERSION"
golangci_lint=$(scripts/tool.sh golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$GOLANGCI_LINT_VERSION")
"$golangci_lint" run ./... || status=1

echo "shellcheck"
shellcheck scripts/*.sh .ci/run pkg/template/builtin/part/harness.sh || status=1

exit "$status"
