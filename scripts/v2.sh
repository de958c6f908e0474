#!/usr/bin/env bash
# Usage: v2.sh smoke|all|able
#
# Runs tests on a machine with cgroup v2 alone and a kernel with project quotas, whatever this one has: a virtual one
# (guest.sh), which is started once for all of them. smoke is a small selection (a run, its memory and process limits, kill,
# cleanup, caps of workspaces) that takes a minute or two; all is every test about cgroups or quotas; able only reports, with its
# status, whether such a machine can be started.
#
#   SANDBOX_RUN_TEST_BIN   the executables under test, static
#   GOCOVERDIR             if set, coverage of the tests and of their child processes goes there
#
# A machine that can not run it prints one line and succeeds; but where CI is set, only a machine
# of the wrong kind does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=${1:?usage: v2.sh smoke|all|able}

skip() {
	echo "v2: SKIPPED: nothing is tested in a virtual machine: $1"
	[[ $mode != able ]] || exit 1
	exit 0
}
missing() {
	[[ -z ${CI:-} ]] || { echo "v2: $1" >&2; exit 1; }
	skip "$1"
}
if [[ $mode != able ]] && ((EUID == 0)) && [[ $(stat -f -c %T /sys/fs/cgroup 2>/dev/null) == cgroup2fs ]]; then
	echo "v2: this machine has cgroup v2 alone: the suite has run on it"
	exit 0
fi
[[ $(uname -sm) == "Linux x86_64" ]] || skip "the virtual machine is for Linux on amd64, and this is $(uname -sm)"
command -v apt-get >/dev/null || skip "the virtual machine is made of Debian's packages, and there is no apt-get"
scripts/deps.sh guest || missing "the programs it needs are missing (see above)"
scripts/guest.sh || missing "the virtual machine could not be made (see above)"
[[ $mode != able ]] || exit 0
: "${SANDBOX_RUN_TEST_BIN:?is not set}"
export SANDBOX_RUN_TEST_BIN

# The table: package | tests of the smoke run.
table() {
	cat <<'TABLE'
internal/linux/clone  | ^Test(InitBornInGroup|BornInGroup)$
internal/linux/cgroup | ^Test(Probe|MemoryLimit|PidsLimit|PhaseGroup|KillByTheKernel|KillWithoutFirstThread|RemoveWithLiveProcesses)$
pkg/sandbox/native    | ^Test(BornInGroup|Conformance)$/^(born|refused,_joins|cases)$/^(hello|memory_limit|process_limit|cgroup_is_the_root_of_its_world)$
pkg/workspace         | ^TestQuota(NotEnforced)?$
internal/linux/spawn  |
pkg/sandbox/process   |
internal/cli          |
TABLE
}

unrelated='^Test(Zygote.*|Refused.*|Volume.*|Disk.*|OvercommittedDiskLosesNoData|S10FloodOfRefusedCalls|OrdinaryProgramsReportNothing)$'
unrelated+='|^Test(ListenersAreLetGo|LandlockScopes|PutAndExecute|Umask)$|^TestAttack(LinksInWritableRoot|VolumeBehindLink|SwappedVolume|WorkdirByDescriptor)$'
unrelated+='|^TestFault(FullRuntimeDirectory|FullCacheDirectory|HostDiskFillsUp|FewerDescriptorsLater|FewDescriptors|ClockJumps)$'
unrelated+='|^TestFork(Differential.*|EndsEarly|FindsNothing|Random.*|WithoutZygote|Unsuited|BadInterpreter|UntrustedImports|Reaches|Ways|NoRoom|.*Modules|Versions|Attack)$'

# The command's tests that set, measure or remove a cgroup.
limited='^Test(SameEitherWay|GCAfterKill|UnusualHosts|NotRoot|KilledAtServer|ServerDies|ServeKilled)$'
limited+='|^TestScript$/^(exec_(basic|json|limits|violations|world)|run_(basic|json|limits)|auto|audit|gc|receipt|doctor_attack)$'

work=$PWD/bin/v2
rm -rf "$work"
mkdir -p "$work"
[[ -x $SANDBOX_RUN_TEST_BIN/probe ]] || scripts/probe.sh "$SANDBOX_RUN_TEST_BIN/probe"

cat >"$work/run" <<'RUN'
#!/bin/bash
# check PACKAGE BINARY ARGUMENT…: one package's tests, in its directory.
check() {
	local package=$1 began=$SECONDS result=ok
	cd "$2" && "${@:3}" >/tmp/out 2>&1 || { result=FAIL status=1; cat /tmp/out; }
	printf '%s\tcgroup v2: %s\t%ds\n' "$result" "$package" $((SECONDS - began))
}
status=0
RUN
packages=() directories=() flags=()
[[ -z ${GOCOVERDIR:-} ]] || flags=(-tags cover -covermode=atomic -coverpkg=./...)
while IFS='|' read -r package run; do
	read -r package <<<"$package"
	read -r run <<<"$run"
	# As an ordinary user: controls without cgroups are the same on any machine, and one kind of user suffices for the rest.
	# The delay by a neighbour means nothing on a machine this slow.
	skip='^TestRootless/^namespace|^TestAttackWeakened$/^slow_neighbours$'
	# Tests without cgroups have the same result on the host, and this machine is twenty times slower.
	[[ $package != pkg/sandbox/native ]] || skip+="|$unrelated"
	# It needs a compiler, which the guest does not have.
	[[ $package != internal/cli ]] || skip='^TestSameEitherWay$/^go'
	[[ $package != pkg/workspace ]] || skip='^Test[^Q]'
	arguments=(-test.timeout=45m "-test.skip=$skip")
	[[ $package != internal/cli ]] || arguments+=("-test.run=$limited")
	if [[ $mode == smoke ]]; then
		[[ -n $run ]] || continue
		arguments=(-test.timeout=10m "-test.run=$run")
	fi
	[[ -z ${GOCOVERDIR:-} ]] || arguments+=("-test.gocoverdir=$GOCOVERDIR")
	packages+=("./$package")
	directories+=("$PWD/$package")
	printf 'check %q %q %q %s\n' "$package" "$PWD/$package" "$work/${package##*/}.test" "$(printf '%q ' "${arguments[@]}")" >>"$work/run"
done < <(table)
# shellcheck disable=SC2016 # the guest's status
echo 'exit $status' >>"$work/run"
chmod +x "$work/run"
CGO_ENABLED=0 go test -c "${flags[@]}" -o "$work/" "${packages[@]}"

seconds=5400 # only what hangs takes that long
[[ $mode != smoke ]] || seconds=1200
cd "$work"
GUEST_CGROUP=v2 GUEST_TIMEOUT=${GUEST_TIMEOUT:-$seconds} GUEST_FILES=$(printf '%s\n' "${directories[@]}") ../../scripts/guest.sh "$work/run"
