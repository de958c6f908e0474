#!/usr/bin/env bash
# Usage: packages.sh system|race|sequential …
#
# Prints the packages of parts of the suite:
#
#   system   those whose tests are mostly end to end: sandboxes, toolchains, daemons. Slow ones first, so that none runs alone at the end
#   race     all others, which make test runs with the race detector
#   sequential  those of system where there is nothing to race: long computations, and programs run one after the other
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
module=$(go list -m)
system=(
	pkg/executor pkg/session pkg/tests pkg/verify pkg/sandbox/native internal/cli pkg/sandbox/docker pkg/image/build pkg/image pkg/sandbox/oci
	pkg/template pkg/executor/kit pkg/executor/kit/sqlite pkg/executor/kit/typescript pkg/toolchain internal/serve internal/bench/cmd internal/linux/seccomp
	pkg/sandbox/process
)
sequential=(internal/linux/seccomp pkg/image/build pkg/template internal/bench/cmd)
for part in "$@"; do
	case $part in
	system) printf "$module/%s\n" "${system[@]}" ;;
	sequential) printf "$module/%s\n" "${sequential[@]}" ;;
	race) go list ./... | grep -vxF "$(printf "$module/%s\n" "${system[@]}")" ;;
	*) echo "packages.sh: no such part: $part" >&2 && exit 2 ;;
	esac
done
