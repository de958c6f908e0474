#!/usr/bin/env bash
# Prints how large the product's Go code is. Not counted: tests, test data, generated files, and the code of the attack suite, the
# conformance suite and the benchmark.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8 # lengths of lines are in characters
most_files=40
most_columns=140

mapfile -t files < <(find . \( -name .git -o -name bin -o -name testdata -o -path ./internal/attack -o -path ./internal/conformance -o -path ./internal/bench \) -prune \
	-o -name '*.go' ! -name '*_test.go' -print | sort)
mapfile -t files < <(grep -L '^// Code generated .* DO NOT EDIT\.$' "${files[@]}")

awk -v most_files="$most_files" -v long="$(cat "${files[@]}" | grep -cE "^.{$((most_columns + 1)),}" || true)" -v most_columns="$most_columns" '
	FNR == 1 { package = substr(FILENAME, 3); sub(/\/[^\/]*$/, "", package); files[package]++; block = 0 }
	{ lines[package]++; total++ }
	block || /^[ \t]*(\/\/|\/\*)/ { comments++ }
	/^[ \t]*\/\*/ { block = 1 }
	block && /\*\// { block = 0 }
	END {
		printf "%6d lines, %.1f %% of them comments\n", total, 100 * comments / total
		printf "%6d lines of more than %d characters\n", long, most_columns
		print "packages with more than " most_files " files:"
		for (p in files) if (files[p] > most_files) { printf "%6d %s\n", files[p], p; large++ }
		if (!large) print "       none"
		print "largest packages:"
		for (p in lines) printf "%6d %s\n", lines[p], p | "sort -rn | head -n 10"
	}' "${files[@]}"
