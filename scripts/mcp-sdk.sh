#!/usr/bin/env bash
# Usage: mcp-sdk.sh
#
# Makes sure that the official TypeScript SDK of the Model Context Protocol is in bin/mcp-sdk, from the npm registry, and prints that
# directory. SANDBOX_RUN_NO_INSTALL=1 only says that it is missing, and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=1.32.2
dir=$PWD/bin/mcp-sdk
fail() {
	echo "mcp-sdk: @modelcontextprotocol/sdk $version is missing: $1" >&2
	exit 1
}

mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9 # tests of two packages may want it at once
if ! grep -qs "\"version\": \"$version\"" "$dir/node_modules/@modelcontextprotocol/sdk/package.json"; then
	[[ -z ${SANDBOX_RUN_NO_INSTALL:-} ]] || fail "SANDBOX_RUN_NO_INSTALL is set; run scripts/mcp-sdk.sh by hand"
	command -v npm >/dev/null || fail "there is no npm; run scripts/deps.sh test"
	[[ -e $dir/package.json ]] || echo '{"private": true, "type": "module"}' >"$dir/package.json"
	npm install --prefix "$dir" --ignore-scripts --no-audit --no-fund --no-save --loglevel=error "@modelcontextprotocol/sdk@$version" >&2 ||
		fail "npm could not install it; its messages are above"
fi
cp internal/testenv/mcpsdk/agent.mjs "$dir/agent.mjs.$$"
mv "$dir/agent.mjs.$$" "$dir/agent.mjs" # Node finds modules from the place of the file
echo "$dir"
