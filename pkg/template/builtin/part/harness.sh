# Runs the function run_case on each case of all_cases; both come from the template, and so do heading and wanted.
# shellcheck shell=bash disable=SC2154,SC2178,SC2128 # functions share names of local variables
work=${TMPDIR:-/tmp}/cases-$$
passed=0 failed=0 details='' last='the table'
exec {pause}<> <(:) # nothing ever comes from there: to wait without a program that sleeps

# slurp reads a file into a variable, line breaks at the end included.
slurp() {
  IFS= read -r -d '' "$1" <"$2" || true
}

clean() {
  local -n text=$1
  local line out=''
  [[ $2 == true ]] || return 0
  while IFS= read -r line || [[ -n $line ]]; do
    out+="${line%"${line##*[![:space:]]}"}"$'\n'
  done <<<"$text"
  text=${out%"${out##*[!$'\n']}"}
}

# differences prints a unified diff of one hunk: what differs between the common ends.
differences() {
  local -a want got
  mapfile -t want <<<"$1"
  mapfile -t got <<<"$2"
  local w=${#want[@]} g=${#got[@]} head=0 tail=0 before after i
  while ((head < w && head < g)) && [[ ${want[head]} == "${got[head]}" ]]; do ((++head)); done
  ((head == w && head == g)) && return
  while ((tail < w - head && tail < g - head)) && [[ ${want[w - 1 - tail]} == "${got[g - 1 - tail]}" ]]; do ((++tail)); done
  before=$((head > 3 ? head - 3 : 0)) after=$((tail > 3 ? tail - 3 : 0))
  printf '%s\n' '--- want' '+++ got' "@@ -$((before + 1)),$((w - after - before)) +$((before + 1)),$((g - after - before)) @@"
  for ((i = before; i < head; i++)); do printf ' %s\n' "${want[i]}"; done
  for ((i = head; i < w - tail; i++)); do printf -- '-%s\n' "${want[i]}"; done
  for ((i = head; i < g - tail; i++)); do printf '+%s\n' "${got[i]}"; done
  for ((i = w - tail; i < w - after; i++)); do printf ' %s\n' "${want[i]}"; done
}

quoted() {
  [[ -n $2 ]] && printf '%s:\n' "$1" && while IFS= read -r line; do printf '  | %s\n' "$line"; done <<<"${2%$'\n'}"
}

milliseconds() {
  local clock=${EPOCHREALTIME/[.,]/}
  printf -v "$1" %d "$((clock / 1000))"
}

one_case() {
  local name=$2 label=$3 limit=$4 want=$5 trim=$6 expected=$7 stdin=$8
  local start now late='' code note='' got='' errors='' cleaned_want=$5 cleaned_got pid
  shift 8
  printf %s "$stdin" >"$work.in"
  milliseconds start
  set -m # a process group of its own, so that all of it can be ended
  (
    set +m
    exec {pause}<&-
    run_case "$@"
  ) <"$work.in" >"$work.out" 2>"$work.err" &
  pid=$!
  set +m
  while kill -0 "$pid" 2>/dev/null; do
    milliseconds now
    if ((now - start >= limit)); then
      late=1
      break
    fi
    read -r -t 0.01 -u "$pause" || true
  done
  kill -KILL -- "-$pid" 2>/dev/null # what the case left running, too
  wait "$pid" 2>/dev/null
  code=$?
  milliseconds now
  slurp got "$work.out" 2>/dev/null
  slurp errors "$work.err"
  cleaned_got=$got
  clean cleaned_want "$trim"
  clean cleaned_got "$trim"
  if [[ $late ]]; then
    note="timed out after $limit ms"
  elif ((code > 128 && code != expected)); then
    note="killed by signal $((code - 128))"
  else
    ((code == expected)) || note="exit code $code, not $expected"
    [[ $cleaned_want == "$cleaned_got" ]] || note+="${note:+; }wrong $wanted"
  fi
  if [[ -z $note ]]; then
    ((++passed))
    printf '%s  pass  %6d ms\n' "$label" "$((now - start))"
    return
  fi
  ((++failed))
  printf '%s  FAIL  %6d ms  %s\n' "$label" "$((now - start))" "$note"
  details+=$'\n'"FAIL $name: $note"$'\n'
  [[ $late ]] || details+="$(differences "$want" "$got")"$'\n'
  [[ -z $late ]] || details+="$(quoted stdout "$got")"$'\n'
  details+="$(quoted stderr "$errors")"$'\n'
}

printf '%s  RESULT     TIME  NOTE\n' "$heading"
all_cases
while IFS= read -r line; do
  [[ -z $line && -z $last ]] || printf '%s\n' "$line"
  last=$line
done <<<"$details"
[[ -z $last ]] || echo
rm -f "$work.in" "$work.out" "$work.err" 2>/dev/null
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
