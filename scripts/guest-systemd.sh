#!/usr/bin/env bash
# Runs a test binary on a machine that systemd runs: go test -exec scripts/guest-systemd.sh …
#
# Like guest.sh, for tests that need a real service manager: the same kernel, emulated, with a
# small Debian (mmdebstrap) and its systemd as process 1, cgroup v2 alone, no network. There is an ordinary
# user, `plain`, with a range of subordinate ids. The package's directory, deploy/, the executables under test and
# the coverage files are at the same paths inside, readable for every user.
#
#   GUEST_USER=plain       the user that runs the binary; default: root, as a system service
#   GUEST_LOGIN=manager    how an ordinary user is logged in:
#                            manager   a unit of the user's own service manager (systemd-run --user); the default
#                            session   a login, in a scope of its own beside the manager (su, as ssh does)
#                            none      neither session nor manager, nor an environment that names them
#   GUEST_DELEGATE="memory pids"   the controllers that the system delegates to user managers; default: Debian's
#   GUEST_CGROUP=hybrid    v1 controllers and an empty v2 tree; default: v2
#   GUEST_TIMEOUT=1200     seconds
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kernel=$top/bin/guest
cache=$top/bin/guest-systemd
packages=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,uidmap,login,passwd,util-linux,mount
packages+=,procps,hostname,e2fsprogs,busybox-static,bubblewrap,python3

# build makes the root file system, once.
build() {
	local work suite tree
	work=$(mktemp -d "$cache.XXXXXXXX")
	suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
	tree=$work/root
	mmdebstrap --quiet --variant=minbase --include="$packages" --format=directory \
		--dpkgopt=path-exclude='/usr/share/doc/*' --dpkgopt=path-exclude='/usr/share/man/*' --dpkgopt=path-exclude='/usr/share/locale/*' \
		"$suite" "$tree" "${GUEST_MIRROR:-http://deb.debian.org/debian}"
	rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/*
	chroot "$tree" useradd -m -u 1001 -s /bin/bash plain
	echo 0123456789abcdef0123456789abcdef >"$tree/etc/machine-id"
	echo guest >"$tree/etc/hostname"
	units "$tree"
	mkfs.ext4 -q -E lazy_itable_init=1 -d "$tree" "$work/root.img" 6G
	rm -rf "$tree"
	mv -T "$work" "$cache" 2>/dev/null || rm -rf "$work" # another process was faster
}

# units makes a machine that starts what a user manager needs, the test, and nothing else.
units() {
	local tree=$1 unit
	for unit in systemd-{udevd,udev-trigger,random-seed,update-utmp,modules-load,remount-fs,journal-flush,pstore,machine-id-commit,sysusers,sysctl,tmpfiles-setup,tmpfiles-setup-dev,binfmt,hwdb-update,firstboot}.service \
		systemd-udevd-{control,kernel}.socket dev-{hugepages,mqueue}.mount sys-{kernel-debug,kernel-tracing,kernel-config,fs-fuse-connections}.mount \
		kmod-static-nodes.service modprobe@.service ldconfig.service proc-sys-fs-binfmt_misc.automount systemd-ask-password-{console,wall}.path \
		timers.target getty.target; do
		ln -sf /dev/null "$tree/etc/systemd/system/$unit"
	done
	cat >"$tree/etc/systemd/system/guest.target" <<'UNIT'
[Unit]
Requires=basic.target guest.service
Wants=dbus.service systemd-logind.service systemd-user-sessions.service
AllowIsolate=yes
UNIT
	cat >"$tree/etc/systemd/system/guest.service" <<'UNIT'
[Unit]
After=basic.target dbus.service systemd-logind.service systemd-user-sessions.service

[Service]
Type=oneshot
ExecStart=/guest-run
TimeoutStartSec=infinity
LimitNOFILE=524288
UNIT
	ln -sf /etc/systemd/system/guest.target "$tree/etc/systemd/system/default.target"
	printf '#!/bin/sh\nexec /lib/systemd/systemd </dev/null >/dev/null 2>&1\n' >"$tree/guest-init"
	cat >"$tree/guest-run" <<'RUN'
#!/bin/bash
exec </dev/null >/dev/ttyS0 2>&1
stty -F /dev/ttyS0 -opost -echo
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin LC_ALL=C.UTF-8 TERM=dumb
busybox ip link set lo up
tar -C / -xf /dev/vdb
. /guest-settings
if [[ -n $delegate ]]; then
	mkdir -p /etc/systemd/system/user@.service.d
	printf '[Service]\nDelegate=\nDelegate=%s\n' "$delegate" >/etc/systemd/system/user@.service.d/delegate.conf
	systemctl daemon-reload
fi
mkfifo -m 666 /run/out
cat /run/out & reader=$!
{
	id=$(id -u "$user")
	plain() { setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH="$PATH" LC_ALL=C.UTF-8 TERM=dumb HOME="/home/$user" USER="$user" "$@"; }
	case $user:$login in
	root:*) HOME=/root USER=root setsid bash /guest-command ;;
	*:manager) systemctl start "user@$id.service" &&
		plain XDG_RUNTIME_DIR="/run/user/$id" systemd-run --user --quiet --wait --pipe --collect -p LimitNOFILE=524288 bash /guest-command ;;
	*:session) su -l "$user" -c 'exec bash /guest-command' ;;
	*:none) plain setsid bash /guest-command ;;
	*) echo "guest: GUEST_LOGIN is manager, session or none, not $login"; exit 2 ;;
	esac
} >/run/out 2>&1
status=$?
for _ in {1..25}; do kill -0 $reader 2>/dev/null || break; sleep 0.2; done
tar -C / -cf /dev/vdc -T /guest-results --ignore-failed-read 2>/dev/null
sync
echo; echo "guest: exit $status"
busybox poweroff -f
RUN
	chmod +x "$tree/guest-init" "$tree/guest-run"
}

mkdir -p "$top/bin"
"$top/scripts/guest.sh" # its kernel and its ramdisk serve here too
[[ -e $cache/root.img ]] || build
(($#)) || exit 0

binary=$1
shift
run=$(mktemp -d "${TMPDIR:-/tmp}/guest.XXXXXXXX")
trap 'rm -rf "$run"' EXIT

# The results: the profile of go test, and the coverage files of child processes.
results=("${GOCOVERDIR:-}")
for argument in "$@"; do
	case $argument in
	-test.coverprofile=* | -test.gocoverdir=* | -test.testlogfile=*) results+=("${argument#*=}") ;;
	esac
done
mkdir "$run/files"
printf '%s\n' "${results[@]}" | sed -n 's#^/##p' >"$run/files/guest-results"
{
	printf 'user=%q login=%q delegate=%q\n' "${GUEST_USER:-root}" "${GUEST_LOGIN:-manager}" "${GUEST_DELEGATE:-}"
	# Directories for results, writable for the user that runs the binary.
	for result in "${results[@]}"; do
		if [[ -d $result ]]; then
			printf 'mkdir -p %q && chmod 1777 %q\n' "$result" "$result"
		elif [[ -n $result ]]; then
			printf 'mkdir -p %q && chmod 1777 %q\n' "${result%/*}" "${result%/*}"
		fi
	done
	# On the host only the owner may be able to read them, and to enter the directories above them.
	for input in "$binary" "$PWD" "${SANDBOX_RUN_TEST_BIN:-}"; do
		while [[ $input == /*/* ]]; do
			input=${input%/*}
			printf 'chmod a+x %q\n' "$input"
		done
	done
	printf 'chmod -R a+rX %q %q\n' "$binary" "$PWD"
	[[ -z ${SANDBOX_RUN_TEST_BIN:-} ]] || printf 'chmod -R a+rX %q\n' "$SANDBOX_RUN_TEST_BIN"
} >"$run/files/guest-settings"
{
	for name in GOCOVERDIR SANDBOX_RUN_TEST_BIN SANDBOX_RUN_TEST_ALL; do
		[[ -z ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
	done
	printf 'export SANDBOXTEST_GUEST=systemd\nulimit -n 65536\ncd %q && exec %q' "$PWD" "$binary"
	printf ' %q' "$@"
	echo
} >"$run/files/guest-command"
inputs=("${binary#/}" "${PWD#/}" "${top#/}/deploy")
[[ -z ${SANDBOX_RUN_TEST_BIN:-} ]] || inputs+=("${SANDBOX_RUN_TEST_BIN#/}")
tar -cf "$run/in.tar" -C "$run/files" guest-command guest-settings guest-results -C / "${inputs[@]}"
truncate -s %1M "$run/in.tar"
truncate -s 1G "$run/out.tar"

append="console=ttyS0 quiet loglevel=3 panic=-1 lsm=landlock swapaccount=1 systemd.show_status=0 systemd.log_target=null"
case ${GUEST_CGROUP:-v2} in
v2) append+=" cgroup_no_v1=all systemd.unified_cgroup_hierarchy=1" ;;
hybrid) append+=" systemd.unified_cgroup_hierarchy=0" ;;
esac
# The tests in the guest have time limits, and an emulated processor is slow: the guest has priority over the tests of the host.
prefer=()
((EUID)) || prefer=(nice -n -10)
timeout --foreground -k 5 "${GUEST_TIMEOUT:-1200}" "${prefer[@]}" qemu-system-x86_64 -machine q35 -accel tcg,thread=single -cpu max -smp 2 -m 4G \
	-nodefaults -no-user-config -display none -nic none -no-reboot -serial stdio -device virtio-rng-pci \
	-kernel "$kernel/vmlinuz" -initrd "$kernel/ramdisk.cpio" -append "$append" \
	-drive "file=$cache/root.img,if=virtio,format=raw,snapshot=on" \
	-drive "file=$run/in.tar,if=virtio,format=raw,readonly=on" -drive "file=$run/out.tar,if=virtio,format=raw" \
	</dev/null | sed -u 's/\r//g' | tee "$run/log" | sed -u '/^guest: exit/d; /reboot: Power down/d'
tar -C / -xf "$run/out.tar" 2>/dev/null || true
status=$(sed -n 's/^guest: exit //p' "$run/log" | tail -1)
[[ -n $status ]] || { echo "guest: the machine ended without an answer (out of time?)" >&2; exit 125; }
exit "$status"
