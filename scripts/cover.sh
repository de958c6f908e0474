#!/usr/bin/env bash
# Coverage by package and in total, and the gate: more than COVER_MIN percent of the statements of
# all packages, nothing left out. A statement counts as covered if any process of the suite ran it.
# Runs the tests first if their result is missing or older than the sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
min=${COVER_MIN:-80}

stale() {
	[[ ! -e cover/complete ]] ||
		[[ -n $(find . \( -name .git -o -name bin -o -name cover \) -prune -o \
			\( -name '*.go' -o -name go.mod \) -newer cover/complete -print -quit) ]]
}
if stale; then
	echo "cover: no test result for these sources; running the tests"
	scripts/deps.sh test
	scripts/test.sh
fi

rm -f cover/cover.out
# One line per block, with the sum of its counts over all processes.
awk '
	/^mode:/ { next }
	{ block = $1 " " $2; if (!(block in n)) order[++blocks] = block; n[block] += $3 }
	END { print "mode: atomic"; for (i = 1; i <= blocks; i++) print order[i], n[order[i]] }
' cover/*.out >cover/sum
mv cover/sum cover/cover.out

# go test lists every package. Should that ever change, the gate must not get easier in silence.
while read -r package dir files; do
	grep -q "^$package/[^/]*:" cover/cover.out && continue
	for file in $files; do
		if go tool cover -mode=set -var=V "$dir/$file" | grep -q '^	*[1-9][0-9]*, // [0-9]*$'; then
			echo "cover: $package has statements but is not in the profile" >&2
			exit 1
		fi
	done
done < <(go list -f '{{.ImportPath}} {{.Dir}} {{join .GoFiles " "}}' ./...)

awk -v min="$min" '
	/^mode:/ { next }
	{
		package = $1
		sub(/\/[^\/]*:.*/, "", package)
		if (!(package in all)) names[++packages] = package
		all[package] += $2; total += $2
		if ($3 > 0) { hit[package] += $2; covered += $2 }
	}
	function row(name, hit, all) { printf "%6.1f %%  %6d of %6d  %s\n", all ? 100 * hit / all : 0, hit, all, name }
	END {
		for (i = 2; i <= packages; i++)  # insertion sort: awk has none
			for (j = i; j > 1 && names[j] < names[j-1]; j--) { t = names[j]; names[j] = names[j-1]; names[j-1] = t }
		for (i = 1; i <= packages; i++) row(names[i], hit[names[i]], all[names[i]])
		row("total", covered, total)
		if (total == 0 || 100 * covered <= min * total) {
			printf "cover: FAIL: %.2f %% of statements; the gate is more than %s %%\n", total ? 100 * covered / total : 0, min
			exit 1
		}
		printf "cover: ok: more than %s %% of statements (go tool cover -html=cover/cover.out shows the lines)\n", min
	}
' cover/cover.out
