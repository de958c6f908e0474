#!/bin/sh
# Starts a server, runs the example, and ends the server.
dir=$(mktemp -d) || exit 1
export SANDBOX_RUN_SOCKET="$dir/server.sock"
sandbox-run serve --dir "$dir/runs" 2>"$dir/log" &
server=$!
tries=0
until grep -q 'serving on' "$dir/log" || [ $tries -gt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
go run ./examples/client
code=$?
kill $server
wait $server
rm -r "$dir"
exit $code
