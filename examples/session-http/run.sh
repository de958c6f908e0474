#!/bin/sh
# Starts a server, uses a session over HTTP, and ends the server.
dir=$(mktemp -d) || exit 1
export SANDBOX_RUN_SOCKET="$dir/server.sock"
sandbox-run serve --dir "$dir/runs" 2>"$dir/log" &
server=$!
tries=0
until grep -q 'serving on' "$dir/log" || [ $tries -gt 300 ]; do sleep 0.1; tries=$((tries + 1)); done

api() { curl --silent --show-error --unix-socket "$SANDBOX_RUN_SOCKET" "$@"; }
sessions=http://server/v1/sessions
cell() { api --json "{\"code\": \"$1\"}" $sessions/mine/cells; }
# field prints a field of text of one JSON document.
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }

project='[{"path": "shop.py", "content": "def total(prices): return sum(prices)\n"}]'
api --json "{\"language\": \"python\", \"name\": \"mine\", \"files\": $project}" $sessions | field state
cell 'import shop; prices = [19, 23]' >"$dir/first"
cell 'shop.total(prices)' | field value
cell '1 / 0' | field verdict
echo 1,2 | api --upload-file - $sessions/mine/files/data.csv
cell 'print(open(\"data.csv\").read().split(\",\")[0])' | field stdout
api --request DELETE $sessions/mine
api $sessions; echo

kill $server
wait $server
rm -r "$dir"
