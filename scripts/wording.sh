#!/usr/bin/env bash
# Usage: wording.sh [DIRECTORY]
#
# Checks the wording of a git work tree (default: this one), as CONTRIBUTING.md and docs/GLOSSARY.md ask for it:
#
#   words      Go and Markdown files have none of $words. Exceptions: the Unix account and test data.
#   subjects   of commits: `area: verb …`, at most 72 characters, lower case after the colon, no full stop at the end.
#              Checked are the commits that are not on origin's main or, without that branch, the last 30; none that is
#              older than the commit that adds this script.
set -euo pipefail
export LC_ALL=C.UTF-8 # subjects are counted in characters
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
readonly words='nobody|somebody|whoever' most=72
# shellcheck disable=SC2016 # the quotation marks are part of a pattern
# Lines that may have such a word: the account in passwd files, its number, its name in documents, Go's http.NoBody, and single words in
# quotes as test data.
readonly account='nobody:x:65534|\bnobody = 65534|the user `nobody`|http\.NoBody\b' data='^[^:]*_test\.go:[0-9]+:.*"(nobody|somebody|whoever)"'
status=0

complain() {
	printf '%s\n' "$*"
	status=1
}

# found lists the lines with such a word that are no exception, as path:line:text.
found() {
	{ git grep --untracked -nwiE "$words" -- '*.go' '*.md' || true; } | { grep -vE "$account|$data" || true; }
}

check_words() {
	local problems
	problems=$(found | sed "s|\$|: name the subject instead of ${words//|/, } (docs/GLOSSARY.md)|")
	[[ -z $problems ]] || complain "$problems"
}

check_subjects() {
	local rule range subject
	rule=$(git log --diff-filter=A --format=%H -- scripts/wording.sh | tail -n 1)
	[[ -n $rule ]] || return 0 # not committed yet
	range=(-n 30)
	git rev-parse --verify --quiet origin/main >/dev/null && range=(^origin/main)
	! git rev-parse --verify --quiet "$rule^" >/dev/null || range+=("^$rule^")
	while IFS= read -r subject; do
		((${#subject} <= most)) || complain "commit subject: more than $most characters: $subject"
		[[ $subject =~ ^[a-z0-9][^:]*:\ [^A-Z] ]] || complain "commit subject: not of the form \`area: verb …\`, in lower case: $subject"
		[[ $subject != *. ]] || complain "commit subject: ends with a full stop: $subject"
	done < <(git log --no-merges --format=%s "${range[@]}" HEAD)
}

git rev-parse --is-inside-work-tree >/dev/null
check_words
check_subjects
exit "$status"
