#!/usr/bin/env bash
# make test: one real run of everything that matters, and the one place where coverage is measured.
#
#   system   packages whose tests start sandboxes, toolchains and daemons ──► cover/system.out   ┐
#   race     all other packages, with the race detector                   ──► cover/race.out     ├─► cover.sh: the gate
#   guest    a selection on cgroup v2 alone, in a virtual machine (v2.sh) ──► GOCOVERDIR         │
#   the executables that all of them start                                ──► cover/children.out ┘
#
# The three run side by side: most tests wait most of the time. Tests find the executables through SANDBOX_RUN_TEST_BIN.
# TESTFLAGS is handed on to go test; with it the guest is left out, and the result does not count for the gate.
#
# A host whose kernel can not install a system-call filter (a known deadlock of its workers leaves it so
# until it is restarted) runs the packages that need one in a virtual machine instead: guest.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${GOTESTSUM_VERSION:?run me by make test}"
began=$SECONDS

rm -rf cover
mkdir -p cover

# Tests run executables, which write their coverage, under many user ids: a checkout below a home directory of mode 0700 has no place for either.
shared=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-run-test.XXXXXXXX")
trap 'rm -rf "$shared"' EXIT
bin=$shared/bin children=$shared/cover
mkdir "$bin" "$children"
chmod 755 "$shared" "$bin"
chmod 1777 "$children"

# A source that changes from here on makes the result stale (see cover.sh).
touch cover/started

((EUID == 0)) || echo "test: not root: tests that need root are skipped, and say so"
mkdir -p bin/warm
rm -f bin/warm/*/*.failed # a failure of an earlier run is tried again
export SANDBOX_RUN_TEST_WARM=$PWD/bin/warm # what toolchains prepare once is prepared once
gotestsum=$(scripts/tool.sh gotestsum gotest.tools/gotestsum "$GOTESTSUM_VERSION")

# -race implies the mode atomic, and only equal modes can be merged.
cover=(-covermode=atomic -coverpkg=./...)
CGO_ENABLED=0 go build -buildvcs=false -tags cover,thin -cover "${cover[@]}" -o "$bin/" ./cmd/...
CGO_ENABLED=0 go build -buildvcs=false -trimpath -tags thin,weaken -o "$bin/weakened/" ./cmd/sandbox-{run,rund,init,net} # for TestWeakened only
scripts/probe.sh "$bin/probe"
export SANDBOX_RUN_TEST_BIN=$bin

mapfile -t system < <(scripts/packages.sh system)
mapfile -t race < <(scripts/packages.sh race)

# filters_work installs a filter that allows everything. A process that hangs in it can not be killed,
# so the script does not wait for it, and it has no descriptor of the script open.
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

# run_tests NAME FLAG… -- PACKAGE…: a part of the suite, with its coverage. go vet is `make lint`'s.
# go test overwrites GOCOVERDIR for the test binaries; -exec sets it back, for what they start.
run_tests() {
	local name=$1 flags=() format=pkgname
	shift
	[[ -z ${TESTFLAGS:-} ]] || format=standard-verbose
	while [[ $1 != -- ]]; do flags+=("$1"); shift; done
	# shellcheck disable=SC2086 # TESTFLAGS is a list
	"$gotestsum" --format "$format" --format-hide-empty-pkg --hide-summary=skipped --jsonfile "cover/$name.json" -- \
		-tags cover -vet=off -count=1 -timeout 20m "${cover[@]}" -coverprofile="cover/$name.out" "${flags[@]}" ${TESTFLAGS:-} "${@:2}"
}
# The race detector sleeps for a second at the end of every process unless told otherwise.
export GORACE=atexit_sleep_ms=10
exec_env="env 'GOCOVERDIR=$children'"

# Parts that run in the background print when they have ended.
status=0
parts=()
background() {
	local name=$1
	shift
	"$@" >"cover/$name.log" 2>&1 &
	parts+=("$name $!")
}
if ! filters_work; then
	echo "test: this host's kernel can not install a system-call filter: what needs one runs in a virtual machine"
	scripts/deps.sh guest
	mapfile -t guest < <(printf '%s\n' "${system[@]}" "${race[@]}" | grep -E '/(internal/(cli|bench/cmd)|internal/linux/(seccomp|spawn|clone|initproc|supervisor)|pkg/(executor/kit|sandbox/(native|process)))$')
	mapfile -t system < <(printf '%s\n' "${system[@]}" | grep -vxF "$(printf '%s\n' "${guest[@]}")")
	mapfile -t race < <(printf '%s\n' "${race[@]}" | grep -vxF "$(printf '%s\n' "${guest[@]}")")
	CGO_ENABLED=0 background emulated run_tests emulated -p 1 -exec "$exec_env '$PWD/scripts/guest.sh'" -- "${guest[@]}"
	# These two need a Go toolchain and a real processor, and no filter.
	CGO_ENABLED=0 go test -count=1 -run '^(TestInitTime|TestImports)$' ./internal/cli || status=$?
fi
CGO_ENABLED=1 background race run_tests race -race -p 2 -exec "$exec_env" -- "${race[@]}"
[[ -n ${TESTFLAGS:-} ]] || GOCOVERDIR=$children background guest scripts/v2.sh smoke
CGO_ENABLED=0 run_tests system -p 3 -exec "$exec_env" -- "${system[@]}" || status=$?
for part in "${parts[@]}"; do
	wait "${part#* }" || status=$?
	cat "cover/${part% *}.log"
done

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

scripts/slowest.sh cover/*.json
echo "test: status $status after $((SECONDS - began)) s"

# Only a whole and successful run counts for the gate.
if ((status == 0)) && [[ -z ${TESTFLAGS:-} ]]; then mv cover/started cover/complete; fi
exit "$status"
