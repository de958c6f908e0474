#!/usr/bin/env bash
# The test suite, with the race detector, and with coverage of the executables that tests start.
#
#   go test ──────────► cover/tests.out     every package of ./..., also those without tests
#   bin/cover/* ──────► GOCOVERDIR ──► cover/children.out
#   both, summed up ──► cover/cover.out     made by cover.sh
#
# Tests find the executables through SANDBOX_RUN_TEST_BIN. TESTFLAGS is handed on to go test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf cover bin/cover
mkdir -p cover bin/cover

# Children write here under many user ids, and from below a home directory they could not.
children=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-run-cover.XXXXXXXX")
trap 'rm -rf "$children"' EXIT
chmod 1777 "$children"

# What changes from here on makes the result stale (see cover.sh).
touch cover/started

# -race implies the mode atomic, and only equal modes can be merged.
CGO_ENABLED=0 go build -buildvcs=false -cover -covermode=atomic -coverpkg=./... -o bin/cover/ ./cmd/...

# Not being root is legal, but nobody should take the result for the whole.
((EUID == 0)) || echo "test: not root: tests that need root will be skipped, and say so"

# go test overwrites GOCOVERDIR for the test binaries; -exec sets it back, for what they start.
export SANDBOX_RUN_TEST_BIN=$PWD/bin/cover
status=0
# shellcheck disable=SC2086 # TESTFLAGS is a list
CGO_ENABLED=1 go test -race -count=1 -timeout 9m \
	-covermode=atomic -coverpkg=./... -coverprofile=cover/tests.out \
	-exec "env 'GOCOVERDIR=$children'" ${TESTFLAGS:-} ./... || status=$?

# A child killed while it wrote leaves half a file, which covdata refuses: leave out just that one.
dropped=0
while ! message=$(go tool covdata textfmt -i="$children" -o cover/children.out 2>&1); do
	[[ $message =~ (covcounters\.[0-9a-f]+\.[0-9]+\.[0-9]+) && -e $children/${BASH_REMATCH[1]} ]] || {
		echo "test: merging the coverage of child processes: $message" >&2
		exit 1
	}
	rm "$children/${BASH_REMATCH[1]}"
	dropped=$((dropped + 1))
done
((dropped == 0)) || echo "test: $dropped child processes were killed while they wrote their coverage; not counted"

# Only a whole and successful run counts for the gate.
if ((status == 0)) && [[ -z ${TESTFLAGS:-} ]]; then mv cover/started cover/complete; fi
exit "$status"
