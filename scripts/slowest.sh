#!/usr/bin/env bash
# Usage: slowest.sh FILE…
#
# Prints the ten slowest packages and the ten slowest tests of runs of go test -json, with their seconds of wall time.
set -euo pipefail

# rows prints the seconds, the package and the test; for a package the test is empty.
rows() {
	awk '
		function value(name) {
			if (!match($0, "\"" name "\":\"?[^\",}]*")) return ""
			return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
		}
		/"Action":"(pass|fail)"/ && /"Elapsed":/ {
			package = value("Package"); sub(/^"/, "", package); sub(/^[^\/]*\/[^\/]*\/[^\/]*\//, "", package)
			test = value("Test"); sub(/^"/, "", test)
			if (test !~ /\//) printf "%.1f\t%s\t%s\n", value("Elapsed"), package, test
		}
	' "$@"
}
table=$(rows "$@" | sort -rn)
for kind in packages tests; do
	echo "slowest $kind:"
	awk -F '\t' -v kind=$kind '(kind == "tests") == ($3 != "") && n++ < 10 { printf "%7.1f s  %s %s\n", $1, $2, $3 }' <<<"$table"
done
