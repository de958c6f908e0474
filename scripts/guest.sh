#!/usr/bin/env bash
# Runs a test binary in a virtual machine: go test -exec scripts/guest.sh …
#
# For hosts whose kernel can not run the tests themselves (see test.sh), and for kernels and cgroup
# layouts the host does not have. The guest is Debian's cloud kernel under QEMU, emulated, with a root
# file system put together from this machine's own programs; no network. The package's directory, the
# executables under test and what the tests leave for coverage are at the same paths inside.
#
#   GUEST_CGROUP=v2      cgroup v2 alone; default: the v1 controllers and an empty v2 tree
#   GUEST_TIMEOUT=1200   seconds
#   GUEST_FILES          further files and directories to copy into the guest, one per line
#
# Without a binary it only makes the kernel, ramdisk and root file system that every guest needs.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$top/bin/guest

# The cache keeps the digest of the script that made it, and another version makes it anew.
stamp=$(sha256sum <"${BASH_SOURCE[0]}")

# build makes the kernel, the initial ramdisk and the root file system, once.
build() {
	local work package version
	work=$(mktemp -d "$cache.XXXXXXXX")
	kernel_package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}'; }
	package=$(kernel_package)
	# A fresh machine has no package lists.
	[[ -n $package ]] || ((EUID)) || { apt-get -q update >/dev/null && package=$(kernel_package); }
	[[ -n $package ]] || { echo "guest: no cloud kernel among this machine's packages; try: apt-get update" >&2; return 1; }
	(cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package" >/dev/null && dpkg -x "$package"_*.deb kernel)
	version=${package#linux-image-}
	cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
	root_tree "$work/root"
	ramdisk "$work" "$version"
	mkfs.ext4 -q -E lazy_itable_init=1 -d "$work/root" "$work/root.img" 6G >/dev/null 2>&1
	rm -rf "$work/root" "$work/kernel" "$work"/*.deb
	echo "$stamp" >"$work/stamp"
	rm -rf "$cache"
	mv -T "$work" "$cache" 2>/dev/null || rm -rf "$work" # another process was faster
}

# copy copies a file of this machine into the guest, with the target of a link.
copy() {
	local tree=$1 file=$2 target
	case $file in /bin/* | /sbin/* | /lib/* | /lib64/*) file=/usr$file ;; esac
	[[ -e $file && ! -d $file ]] || return 0
	for target in "$file" "$(readlink -f "$file")"; do
		mkdir -p "$tree${target%/*}"
		cp -a "$target" "$tree$target"
	done
}

root_tree() {
	local tree=$1 file
	mkdir -p "$tree"/usr/{bin,sbin,lib,lib64,lib/locale,local,share/doc} "$tree"/{etc,root,home,tmp,var/tmp,var/cache,run,proc,sys,dev,mnt}
	chmod 1777 "$tree/tmp" "$tree/var/tmp"
	chmod 700 "$tree/root"
	for file in bin sbin lib lib64; do ln -s "usr/$file" "$tree/$file"; done
	local files=(/usr/bin/python3 /usr/bin/busybox /usr/bin/awk)
	mapfile -t -O ${#files[@]} files < <(dpkg -L coreutils util-linux mount bsdutils bash dash sed grep findutils procps \
		e2fsprogs xfsprogs bubblewrap hostname tar libc-bin login mawk uidmap python3.11-minimal 2>/dev/null | grep -E '^(/usr)?/s?bin/.')
	for file in "${files[@]}"; do copy "$tree" "$file"; done
	cp -a /usr/lib/python3* "$tree/usr/lib/"
	find "$tree"/usr/lib/python3* \( -name test -o -name dist-packages \) -type d -prune -exec rm -rf {} +
	# Scripts and static programs have no libraries, and ldd reports that with its status.
	{
		find "$tree/usr/bin" "$tree/usr/sbin" -type f -perm -u+x
		find "$tree"/usr/lib/python3* -name '*.so'
	} | { xargs ldd 2>/dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// {print $3} /^\t\// {print $1}' | sort -u |
		while read -r file; do copy "$tree" "$file"; done
	for file in /lib/x86_64-linux-gnu/libnss_files* /lib/x86_64-linux-gnu/libgcc_s.so.1; do copy "$tree" "$file"; done
	for file in passwd group shadow nsswitch.conf hosts alternatives mke2fs.conf os-release ld.so.conf ld.so.conf.d localtime; do
		[[ ! -e /etc/$file ]] || cp -aL "/etc/$file" "$tree/etc/" 2>/dev/null || cp -a "/etc/$file" "$tree/etc/"
	done
	echo guest >"$tree/etc/hostname"
	echo nameserver 127.0.0.1 >"$tree/etc/resolv.conf" # a test internet mounts its own over it
	cp -a /usr/lib/locale/C.utf8 "$tree/usr/lib/locale/" 2>/dev/null || true
	ldconfig -r "$tree"
	cat >"$tree/guest-init" <<'INIT'
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LC_ALL=C.UTF-8 TERM=dumb USER=root
exec </dev/null >/dev/ttyS0 2>&1
stty -F /dev/ttyS0 -opost -echo
mount -t proc -o nosuid,nodev,noexec proc /proc && mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts && mount -t tmpfs -o mode=1777 shm /dev/shm
ln -s /proc/self/fd /dev/fd
mount -t tmpfs -o mode=755 run /run
hostname guest && busybox ip link set lo up
if [[ $(</proc/cmdline) == *guest.cgroup=v2* ]]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	for c in $(</sys/fs/cgroup/cgroup.controllers); do echo "+$c" >/sys/fs/cgroup/cgroup.subtree_control; done
else
	mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
	for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
		mkdir "/sys/fs/cgroup/$c" && mount -t cgroup -o "$c" cgroup "/sys/fs/cgroup/$c"
	done
	mkdir /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
fi
tar -C / -xf /dev/vdb
mkfifo /run/out
cat /run/out & reader=$!
setsid bash /guest-command </dev/null >/run/out 2>&1
status=$?
for _ in {1..25}; do kill -0 $reader 2>/dev/null || break; sleep 0.2; done
tar -C / -cf /dev/vdc -T /guest-results --ignore-failed-read 2>/dev/null
sync
echo; echo "guest: exit $status"
busybox poweroff -f
INIT
	chmod +x "$tree/guest-init"
}

ramdisk() {
	local work=$1 version=$2 modules=$1/kernel/lib/modules/$2 tree=$1/ramdisk n=10 name path
	mkdir -p "$tree"/{bin,dev,proc,new,modules}
	cp /usr/bin/busybox "$tree/bin/" && ln -s busybox "$tree/bin/sh"
	depmod -b "$work/kernel" "$version"
	for name in virtio_pci virtio_blk overlay loop quota_v2 xfs veth af_packet; do
		# A module comes after the modules it needs, which modules.dep lists last first.
		while read -r path; do
			[[ -n $(find "$tree/modules" -name "*-${path##*/}") ]] || cp "$modules/$path" "$tree/modules/$((n++))-${path##*/}"
		done < <(sed -n "s#^\([^:]*/$name\.ko\):\(.*\)#\2 \1#p" "$modules/modules.dep" | awk '{for (i = NF - 1; i > 0; i--) print $i; print $NF}')
	done
	cat >"$tree/init" <<'INIT'
#!/bin/sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
for m in /modules/*; do $b insmod "$m"; done
n=0; while [ ! -b /dev/vdc ] && [ $n -lt 100 ]; do $b sleep 0.1; n=$((n + 1)); done
$b mount -t ext4 /dev/vda /new
$b mount --move /dev /new/dev
exec $b switch_root /new /guest-init
INIT
	chmod +x "$tree/init"
	(cd "$tree" && find . | cpio -o -H newc --quiet) >"$work/ramdisk.cpio"
}

[[ $(cat "$cache/stamp" 2>/dev/null) == "$stamp" ]] || { mkdir -p "${cache%/*}" && build; }
(($#)) || exit 0 # it was only to be made

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
	for name in GOCOVERDIR SANDBOX_RUN_TEST_BIN SANDBOX_RUN_TEST_ALL; do
		[[ -z ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
	done
	[[ -z ${GOCOVERDIR:-} ]] || printf 'mkdir -p -m 1777 %q\n' "$GOCOVERDIR"
	for result in "${results[@]}"; do
		if [[ -d $result ]]; then
			printf 'mkdir -p %q\n' "$result"
		elif [[ -n $result ]]; then
			printf 'mkdir -p %q\n' "${result%/*}"
		fi
	done
	printf 'export SANDBOXTEST_GUEST=1\nulimit -n 65536\ncd %q && exec %q' "$PWD" "$binary"
	printf ' %q' "$@"
	echo
} >"$run/files/guest-command"
inputs=("${binary#/}" "${PWD#/}")
[[ -z ${SANDBOX_RUN_TEST_BIN:-} ]] || inputs+=("${SANDBOX_RUN_TEST_BIN#/}")
while read -r file; do
	[[ -z $file ]] || inputs+=("${file#/}")
done <<<"${GUEST_FILES:-}"
tar -cf "$run/in.tar" -C "$run/files" guest-command guest-results -C / "${inputs[@]}"
truncate -s %1M "$run/in.tar"
truncate -s 1G "$run/out.tar"

# One thread for both virtual processors: with a thread each, a guest on a busy host was seen to hang for good.
append="console=ttyS0 quiet loglevel=3 panic=-1 lsm=landlock swapaccount=1"
[[ ${GUEST_CGROUP:-} != v2 ]] || append+=" cgroup_no_v1=all guest.cgroup=v2"
# The tests in the guest have time limits, and an emulated processor is slow: the guest has priority over the tests of the host.
prefer=()
((EUID)) || prefer=(nice -n -10)
timeout --foreground -k 5 "${GUEST_TIMEOUT:-1200}" "${prefer[@]}" qemu-system-x86_64 -machine q35 -accel tcg,thread=single -cpu max -smp 2 -m 6G \
	-nodefaults -no-user-config -display none -nic none -no-reboot -serial stdio -device virtio-rng-pci \
	-kernel "$cache/vmlinuz" -initrd "$cache/ramdisk.cpio" -append "$append" \
	-drive "file=$cache/root.img,if=virtio,format=raw,snapshot=on" \
	-drive "file=$run/in.tar,if=virtio,format=raw,readonly=on" -drive "file=$run/out.tar,if=virtio,format=raw" \
	</dev/null | sed -u 's/\r//g' | tee "$run/log" | sed -u '/^guest: exit/d; /reboot: Power down/d'
tar -C / -xf "$run/out.tar" 2>/dev/null || true
status=$(sed -n 's/^guest: exit //p' "$run/log" | tail -1)
[[ -n $status ]] || { echo "guest: the machine ended without an answer (out of time?)" >&2; exit 125; }
exit "$status"
