#!/usr/bin/env bash
# Usage: deps.sh GROUP
#
# Makes sure that the programs of a group of tasks are installed, and installs missing ones from
# the distribution's packages (apt), naming them. Prints nothing when all are installed.
# SANDBOX_RUN_NO_INSTALL=1 only names what is missing, and fails.
set -euo pipefail

# Programs of daemons and Go are not on every user's PATH.
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin

# The one table: groups (comma-separated) | Debian package | what is used | command that proves it.
# A proof is run by bash with output thrown away; status 0 means present.
table() {
	cat <<'TABLE'
test,test-all,attack | gcc        | a C compiler, for the race detector and probes | command -v gcc
test,test-all,attack | libc6-dev  | the C library's headers                        | echo '#include <stdlib.h>' | gcc -E -
test,test-all,bench  | e2fsprogs  | mkfs.ext4, for the disk-backed scratch         | command -v mkfs.ext4
test,test-all,bench  | python3    | a program to run in the sandbox                | test -x /usr/bin/python3
test,test-all,bench  | python3-pandas     | modules that take long to load          | /usr/bin/python3 -c 'import pandas'
test,test-all        | python3-matplotlib | modules that take long to load          | /usr/bin/python3 -c 'import matplotlib'
test,test-all,bench  | python3-pytest | a test framework                           | /usr/bin/python3 -m pytest --version
test,test-all        | junit5     | a test framework                               | test -e /usr/share/java/junit-platform-console.jar
test,test-all        | bats       | a test framework                               | bats --version
test,test-all,bench  | nodejs     | node, for JavaScript and TypeScript            | node --version
test,test-all,bench  | python3-pip | installs packages of Python                   | /usr/bin/python3 -m pip --version
test,test-all,bench  | npm        | installs packages of JavaScript                | npm --version
test,test-all        | g++        | a C++ compiler, for a language from a file     | command -v g++
test,test-all        | zsh        | one of the shells                              | command -v zsh
test,test-all        | openssl    | makes a certificate for a server               | command -v openssl
test,test-all        | mawk       | a program behind links                         | command -v awk
test,test-all        | busybox-static  | many programs in one file                 | test -x /usr/bin/busybox
test,test-all        | default-jdk-headless | javac, a toolchain                  | javac -version
test,test-all        | rustc      | rustc, a toolchain                            | PATH=$PATH:~/.cargo/bin rustc --version
test,test-all        | cargo      | cargo, a toolchain                            | PATH=$PATH:~/.cargo/bin cargo --version
test,test-all        | postgresql | initdb, postgres and psql                      | ls /usr/lib/postgresql/*/bin/initdb || command -v initdb
test,test-all        | sqlite3    | the harness of SQL                             | command -v sqlite3
test,test-all        | podman     | takes what images are exported as              | command -v podman
test,test-all,bench  | docker.io  | dockerd and docker                             | command -v dockerd && command -v docker
test,test-all,bench  | runc       | an OCI runtime                                 | command -v runc
test,test-all        | runsc      | gVisor, an OCI runtime                         | command -v runsc
test,test-all        | crun       | an OCI runtime that refuses some machines      | command -v crun
test-all             | prometheus | promtool, which checks alert rules             | command -v promtool
test-all,bench       | slirp4netns | the reference of networks                    | command -v slirp4netns
test-all,bench       | python3-ipykernel | the reference of sessions              | /usr/bin/python3 -c 'import ipykernel, jupyter_client'
test,test-all,bench  | bubblewrap | bwrap, the reference of the benchmark          | command -v bwrap
guest,guest-systemd  | qemu-system-x86 | the virtual machine of guest.sh            | command -v qemu-system-x86_64
guest,guest-systemd  | busybox-static  | its first programs                         | test -x /usr/bin/busybox
guest,guest-systemd  | cpio            | to pack them                               | command -v cpio
guest,guest-systemd  | kmod            | depmod                                     | command -v depmod
guest,guest-systemd  | bubblewrap      | a program to run in it                     | command -v bwrap
test,test-all,guest  | uidmap          | newuidmap, for ordinary users              | command -v newuidmap
test,test-all,images,guest-systemd | mmdebstrap | images of Debian packages, and the guest's Debian | command -v mmdebstrap
guest,guest-systemd  | e2fsprogs       | mkfs.ext4, for its disk                    | command -v mkfs.ext4
guest                | xfsprogs        | mkfs.xfs, for quotas                       | command -v mkfs.xfs
lint                 | shellcheck | the linter for shell scripts                   | command -v shellcheck
TABLE
}

group=${1:?usage: deps.sh test|test-all|bench|images|guest|guest-systemd|lint}

# The distribution does not have the needed version of Go.
if ! command -v go >/dev/null; then
	echo "deps: go is not on PATH nor in /usr/local/go/bin; install it from https://go.dev/dl/" >&2
	exit 1
fi

packages=() reasons=() known=
while IFS='|' read -r groups package use proof; do
	case ",${groups// /}," in *",$group,"*) known=1 ;; *) continue ;; esac
	bash -c "$proof" >/dev/null 2>&1 </dev/null && continue
	read -r package <<<"$package"
	read -r use <<<"$use"
	packages+=("$package")
	reasons+=("$package ($use)")
done < <(table)

if [[ -z $known ]]; then
	echo "deps: no such group: $group" >&2
	exit 2
fi
((${#packages[@]})) || exit 0

missing=$(printf ', %s' "${reasons[@]}")
missing=${missing#, }

fail() {
	echo "deps: missing: $missing" >&2
	echo "deps: $1" >&2
	exit 1
}

[[ -z ${SANDBOX_RUN_NO_INSTALL:-} ]] || fail "SANDBOX_RUN_NO_INSTALL is set; install them by hand"
command -v apt-get >/dev/null || fail "this script installs with apt-get only; install them with this system's package manager"

as_root=()
if ((EUID != 0)); then
	command -v sudo >/dev/null || fail "not root and no sudo; as root: apt-get install ${packages[*]}"
	as_root=(sudo)
	# Without a terminal a question for the password would wait for ever.
	[[ -t 0 ]] || as_root=(sudo -n)
fi

echo "deps: installing with ${as_root[*]:+sudo }apt-get: $missing"
apt_get() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@"
}
# A fresh machine has no package lists, or old ones: fetch them only if the first try fails.
apt_get install --no-install-recommends "${packages[@]}" ||
	{ apt_get update && apt_get install --no-install-recommends "${packages[@]}"; } ||
	fail "apt-get failed; its messages are above"

# An installed package is no proof: run the proofs again.
SANDBOX_RUN_NO_INSTALL=1 exec "${BASH_SOURCE[0]}" "$group"
