#!/usr/bin/env bash
# Usage: tool.sh NAME PACKAGE VERSION
#
# Prints the path of a Go tool of exactly that version, built from source into bin/tools if it is
# not there yet. Nothing outside the work tree (but Go's caches) is changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name=$1 package=$2 version=$3

# A tool built by an older Go can not read the code of a newer one.
dir=$PWD/bin/tools/$version-$(go env GOVERSION)
if [[ ! -x $dir/$name ]]; then
	echo "tool: building $name $version (once; may take some minutes)" >&2
	CGO_ENABLED=0 GOFLAGS='' GOOS='' GOARCH='' GOBIN=$dir go install -trimpath "$package@$version" >&2
fi
echo "$dir/$name"
