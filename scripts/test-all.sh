#!/usr/bin/env bash
# The whole matrix: the suite with its long tests (SANDBOX_RUN_TEST_ALL=1), what has to do with cgroups on a
# machine with cgroup v2 alone (v2.sh), each fuzz target for FUZZTIME, and what only a machine with systemd can show.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p bin/test
CGO_ENABLED=0 go build -buildvcs=false -trimpath -tags thin -o bin/test/ ./cmd/...
export SANDBOX_RUN_TEST_BIN=$PWD/bin/test

((EUID == 0)) || echo "test-all: not root: tests that need root will be skipped, and say so"
# shellcheck disable=SC2086 # TESTFLAGS is a list
SANDBOX_RUN_TEST_ALL=1 CGO_ENABLED=1 go test -race -count=1 -timeout 45m ${TESTFLAGS:-} ./...

# The race detector takes memory for every goroutine there ever was: memory is judged without it.
SANDBOX_RUN_TEST_ALL=1 CGO_ENABLED=0 go test -count=1 -timeout 10m -run '^TestNoLeak$' ./pkg/sandbox/native

# What needs a machine of its own: a clock to set.
if scripts/v2.sh able; then
	CGO_ENABLED=0 go test -count=1 -timeout 20m -exec "$PWD/scripts/guest.sh" -run '^TestFaultClockJumps$' ./pkg/sandbox/native
fi

# And cgroup v2 alone.
scripts/v2.sh all

# go test -list prints a package's names and then a line with the package.
listing=$(go test -run '^$' -list '^Fuzz' ./...)
count=0
while read -r package target; do
	echo "fuzz $package $target for ${FUZZTIME:-60s}"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-60s}" "$package" </dev/null
	count=$((count + 1))
done < <(awk '/^Fuzz/ { t[++n] = $1 } /^ok/ { for (i = 1; i <= n; i++) print $2, t[i]; n = 0 }' <<<"$listing")

# On a machine that systemd runs, what it delegates to an ordinary user; then the groups as that user; then the units of deploy/.
if ((EUID == 0)); then
	scripts/deps.sh guest-systemd
	export CGO_ENABLED=0
	go test -p 1 -count=1 -timeout 30m -exec "$PWD/scripts/guest-systemd.sh" ./internal/linux/delegate ./internal/linux/cgroup
	GUEST_USER=plain go test -count=1 -timeout 30m -exec "$PWD/scripts/guest-systemd.sh" ./internal/linux/cgroup
	for login in manager session; do
		GUEST_USER=plain GUEST_LOGIN=$login go test -count=1 -timeout 30m -exec "$PWD/scripts/guest-systemd.sh" -run '^TestOrdinaryUserUnderSystemd$' -v ./internal/cli
	done
	for cgroups in v2 hybrid; do
		GUEST_CGROUP=$cgroups go test -count=1 -timeout 30m -exec "$PWD/scripts/guest-systemd.sh" -run '^TestUnits$' -v ./internal/cli
	done
fi
echo "test-all: ok, $count fuzz targets"
