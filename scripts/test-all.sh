#!/usr/bin/env bash
# make test-all: everything that make test leaves out because it only repeats, in two lanes side by side.
#
#   this machine   every test in its long form (SANDBOX_RUN_TEST_ALL=1), with the race detector, among them the attack suite against variants
#                  without one isolation step each (TestWeakened); growth of memory without it
#   others         virtual machines: cgroup v2 alone (v2.sh), a clock that jumps, and what only systemd can show; then each fuzz target
#                  for FUZZTIME
#
# All steps run even when one fails; each prints its result and its time, and the output of a failed one follows at the end.
# shellcheck disable=SC2317,SC2016 # steps are called by their names, and the inner shell expands what it is given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${GOTESTSUM_VERSION:?run me by make test-all}"

logs=bin/test-all
rm -rf "$logs"
mkdir -p "$logs"
# Tests run executables as other users, who can not enter a checkout below a home directory of mode 0700.
bin=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-run-test.XXXXXXXX")
trap 'rm -rf "$bin"' EXIT
chmod 755 "$bin"
CGO_ENABLED=0 go build -buildvcs=false -trimpath -tags thin -o "$bin/" ./cmd/...
CGO_ENABLED=0 go build -buildvcs=false -trimpath -tags thin,weaken -o "$bin/weakened/" ./cmd/sandbox-{run,rund,init,net} # for TestWeakened only
scripts/probe.sh "$bin/probe"
export SANDBOX_RUN_TEST_BIN=$bin
mkdir -p bin/warm
rm -f bin/warm/*/*.failed # a failure of an earlier run is tried again
export SANDBOX_RUN_TEST_WARM=$PWD/bin/warm # what toolchains prepare once is prepared once
gotestsum=$(scripts/tool.sh gotestsum gotest.tools/gotestsum "$GOTESTSUM_VERSION")

((EUID == 0)) || echo "test-all: not root: tests that need root are skipped, and say so"

# step NAME COMMAND…: one step of a lane. Its output goes to a file.
step() {
	local name=$1 began=$SECONDS result=ok
	shift
	"$@" >"$logs/$name.log" 2>&1 </dev/null || { result=FAIL && touch "$logs/$name.failed"; }
	[[ $result != ok ]] || ! grep -q SKIPPED "$logs/$name.log" || result=SKIP
	printf '%-4s  %-24s %5d s\n' "$result" "$name" $((SECONDS - began))
}

# long_suite PACKAGE… runs tests in their long form, as the flags in $flags say.
long_suite() {
	(($# > 3)) || { echo "only $# packages were found" && return 1; }
	# shellcheck disable=SC2086 # TESTFLAGS is a list
	SANDBOX_RUN_TEST_ALL=1 "$gotestsum" --format pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile "$logs/$suite.json" -- \
		"${flags[@]}" -vet=off -count=1 -timeout 60m ${TESTFLAGS:-} "$@"
}

with_race() {
	local suite=suite flags=(-race -p 3 -skip '^TestNoLeak$') packages slowest # TestNoLeak is the step no-leak
	packages=$(scripts/packages.sh system race | grep -vxF "$(scripts/packages.sh sequential)") || return
	# By their times in the long form, the longest first: one that is started late runs alone at the end.
	slowest=$(printf "$(go list -m)/pkg/%s\n" sandbox/oci sandbox/native executor sandbox/docker) || return
	# shellcheck disable=SC2046,SC2086 # lists
	CGO_ENABLED=1 long_suite $slowest $(grep -vxF "$slowest" <<<"$packages")
}

without_race() {
	local suite=sequential flags=(-p 2) packages
	packages=$(scripts/packages.sh sequential) || return
	# shellcheck disable=SC2086 # a list
	CGO_ENABLED=0 long_suite $packages
}

# The race detector takes memory for every goroutine there ever was: memory is judged without it.
no_leak() {
	SANDBOX_RUN_TEST_ALL=1 CGO_ENABLED=0 go test -vet=off -count=1 -timeout 10m -run '^TestNoLeak$' ./pkg/sandbox/native
}

# Two targets at a time, with a worker each. A target whose time ends while go test minimizes an input fails, so that is kept short. go test
# also fails, with no input and no more than "context deadline exceeded", if the time ends while it waits for its worker: that is no finding.
# go test -list prints a package's names and then a line with the package.
fuzz() {
	go test -vet=off -run '^$' -list '^Fuzz' ./... |
		awk '/^Fuzz/ { t[++n] = $1 } /^ok/ { for (i = 1; i <= n; i++) print $2, t[i]; n = 0 }' |
		xargs -P 2 -n 2 bash -c '
			output=$(go test -vet=off -run "^$" -fuzz "^$1\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 1s -parallel 1 "$0" 2>&1 </dev/null) && result=ok || result=FAIL
			[[ $output != *"--- FAIL: $1 ("*"s)
    context deadline exceeded
FAIL"* || $output == *"Failing input"* ]] || result=ok
			echo "$result fuzz $0 $1"
			[[ $result == ok ]] || { echo "$output"; exit 1; }'
}

guest_test() { CGO_ENABLED=0 go test -vet=off -p 1 -count=1 -timeout 30m -exec "$@"; }

here() {
	step suite with_race
	step sequential without_race
	step no-leak no_leak
}

guests() {
	step cgroup-v2 scripts/v2.sh all
	if ! scripts/v2.sh able >/dev/null 2>&1; then
		step clock-jumps echo "SKIPPED: there is no virtual machine (see cgroup-v2)"
	else
		step clock-jumps guest_test "$PWD/scripts/guest.sh" -run '^TestFaultClockJumps$' ./pkg/sandbox/native
	fi
	((EUID == 0)) || return 0
	# What systemd delegates to an ordinary user; then cgroups as that user; then the units of deploy/.
	step systemd-packages scripts/deps.sh guest-systemd
	local systemd=$PWD/scripts/guest-systemd.sh login cgroups
	step systemd-root guest_test "$systemd" ./internal/linux/delegate ./internal/linux/cgroup
	GUEST_USER=plain step systemd-plain guest_test "$systemd" ./internal/linux/cgroup
	for login in manager session; do
		GUEST_USER=plain GUEST_LOGIN=$login step "systemd-$login" guest_test "$systemd" -run '^TestOrdinaryUserUnderSystemd$' -v ./internal/cli
	done
	for cgroups in v2 hybrid; do
		GUEST_CGROUP=$cgroups step "systemd-units-$cgroups" guest_test "$systemd" -run '^TestUnits$' -v ./internal/cli
	done
}

others() {
	guests
	step fuzz fuzz
}

others >"$logs/others.log" 2>&1 &
lane=$!
here
wait "$lane" || touch "$logs/others.failed"
cat "$logs/others.log"

scripts/slowest.sh "$logs"/*.json || true
status=0
for failed in "$logs"/*.failed; do
	[[ -e $failed ]] || continue
	echo "==== ${failed##*/}"
	cat "${failed%.failed}.log"
	status=1
done
echo "test-all: status $status after $((SECONDS / 60)) min, $(grep -c '^ok fuzz' "$logs/fuzz.log") fuzz targets for $FUZZTIME each"
exit "$status"
