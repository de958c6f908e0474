#!/usr/bin/env bash
# The test suite, with the race detector, and with coverage of the executables that tests start.
#
#   go test ──────────► cover/tests.out     every package of ./..., also those without tests
#   bin/cover/* ──────► GOCOVERDIR ──► cover/children.out
#   v2.sh smoke ──────► GOCOVERDIR      on cgroup v2 alone, in a virtual machine
#   both, summed up ──► cover/cover.out     made by cover.sh
#
# Tests find the executables through SANDBOX_RUN_TEST_BIN. TESTFLAGS is handed on to go test.
#
# A host whose kernel can not install a system-call filter (a known deadlock of its workers leaves it so
# until it is restarted) runs the packages that need one in a virtual machine instead: guest.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf cover bin/cover
mkdir -p cover bin/cover
: >cover/guest.out # stays empty unless a virtual machine is needed

# Children write here under many user ids, and from below a home directory they could not.
children=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-run-cover.XXXXXXXX")
trap 'rm -rf "$children"' EXIT
chmod 1777 "$children"

# What changes from here on makes the result stale (see cover.sh).
touch cover/started

# -race implies the mode atomic, and only equal modes can be merged.
CGO_ENABLED=0 go build -buildvcs=false -tags cover,thin -cover -covermode=atomic -coverpkg=./... -o bin/cover/ ./cmd/...

# Not being root is legal, but nobody should take the result for the whole.
((EUID == 0)) || echo "test: not root: tests that need root will be skipped, and say so"

# The probe of the conformance suite, for machines without a compiler.
probe=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-run-probe.XXXXXXXX")
cp pkg/sandbox/sandboxtest/testdata/probe/main.go.txt "$probe/main.go"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/cover/probe "$probe/main.go"
rm -rf "$probe"

# filters_work installs a filter that allows everything. A process that hangs in it can not be killed,
# so it is not waited for, and holds nothing of ours open.
filters_work() {
	local pid
	/usr/bin/python3 -c '
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack("H6xP", 1, ctypes.addressof(allow)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
' <&- >/dev/null 2>&1 &
	pid=$!
	for _ in {1..100}; do
		kill -0 "$pid" 2>/dev/null || { wait "$pid"; return; }
		sleep 0.1
	done
	disown "$pid"
	return 1
}

# go test overwrites GOCOVERDIR for the test binaries; -exec sets it back, for what they start.
export SANDBOX_RUN_TEST_BIN=$PWD/bin/cover
status=0
mapfile -t packages < <(go list ./...)
guest=()
if ! filters_work; then
	echo "test: this host's kernel can not install a system-call filter: what needs one runs in a virtual machine, without -race"
	scripts/deps.sh guest
	mapfile -t guest < <(printf '%s\n' "${packages[@]}" | grep -E '/(internal/(cli|bench/cmd)|internal/linux/(seccomp|spawn|clone|initproc|supervisor)|pkg/(executor/kit|sandbox/(native|process)))$')
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -vxF "$(printf '%s\n' "${guest[@]}")")
fi
# shellcheck disable=SC2086 # TESTFLAGS is a list
CGO_ENABLED=1 go test -tags cover -race -count=1 -timeout 30m \
	-covermode=atomic -coverpkg=./... -coverprofile=cover/tests.out \
	-exec "env 'GOCOVERDIR=$children'" ${TESTFLAGS:-} "${packages[@]}" || status=$?
if ((${#guest[@]})); then
	# These two need a Go toolchain and a real processor, and no filter.
	CGO_ENABLED=0 go test -count=1 -run '^(TestInitTime|TestImports)$' ./internal/cli || status=$?
	# shellcheck disable=SC2086
	CGO_ENABLED=0 go test -tags cover -p 1 -count=1 -timeout 30m \
		-covermode=atomic -coverpkg=./... -coverprofile=cover/guest.out \
		-exec "env 'GOCOVERDIR=$children' '$PWD/scripts/guest.sh'" ${TESTFLAGS:-} "${guest[@]}" || status=$?
fi

# A selection is the host's; a whole run has a look at a machine with cgroup v2 alone.
[[ -n ${TESTFLAGS:-} ]] || GOCOVERDIR=$children scripts/v2.sh smoke || status=$?

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
