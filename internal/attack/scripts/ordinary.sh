# What shells do all day: pipes, subshells, background jobs, temporary files, signals.
set -e
d=$(mktemp -d)
(seq 1 100 | sort -n | tail -n 1) >"$d/last"
sleep 0.01 &
wait $!
trap 'echo caught' USR1
kill -USR1 $$
test "$(cat "$d/last")" = 100
rm -r "$d"
echo ordinary
