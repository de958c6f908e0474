package seccomp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const x32 = 0x40000000

var nativeProbes = []probe{
	// S3. A kernel without the x32 ABI answers as the filter does.
	{name: "x32-getpid", want: unix.ENOSYS, run: raw(x32 | unix.SYS_GETPID), lacking: unix.ENOSYS},
	{name: "x32-mount", want: unix.ENOSYS, run: raw(x32|unix.SYS_MOUNT, 0, bad), lacking: unix.ENOSYS},
	{name: "x32-ptrace", want: unix.ENOSYS, run: raw(x32|521, 0, 0), lacking: unix.ENOSYS},
	{name: "iopl", want: unix.EPERM, run: raw(unix.SYS_IOPL, 99)},
	{name: "ioperm", want: unix.EPERM, run: raw(unix.SYS_IOPERM, bad, bad, 0)},
	{name: "modify_ldt", want: unix.EPERM, run: raw(unix.SYS_MODIFY_LDT, 99)},
}

var nativeSetIDProbes = []probe{
	{name: "chmod-suid", want: unix.EPERM, run: func() unix.Errno { return path1(unix.SYS_CHMOD, "f", 0o4755, 0) }},
	{name: "mkdir-sgid", want: unix.EPERM, run: func() unix.Errno { return path1(unix.SYS_MKDIR, "m", 0o2755, 0) }},
	{name: "mknod-suid", want: unix.EPERM, run: func() unix.Errno { return path1(unix.SYS_MKNOD, "n", unix.S_IFREG|0o4755, 0) }},
	{name: "creat-suid", want: unix.EPERM, run: func() unix.Errno { return path1(unix.SYS_CREAT, "c", 0o4755, 0) }},
	{name: "open-suid", want: unix.EPERM, run: func() unix.Errno { return path1(unix.SYS_OPEN, "o", unix.O_CREAT, 0o4755) }},
	{name: "open-stale-mode", run: func() unix.Errno { return path1(unix.SYS_OPEN, "f", 0, 0o7777) }},
}

// path1 makes a call whose first argument is a path; descriptors it may
// return die with the child.
func path1(nr uintptr, path string, a, b uintptr) unix.Errno {
	p, _ := unix.BytePtrFromString(path)
	_, _, errno := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), a, b)
	return errno
}

// int80 makes an i386 system call without arguments. The machine code is
// written to a page of its own because an assembly file would be linked
// into every program that imports this package.
func int80(nr byte) int {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	copy(page, []byte{
		0xb8, nr, 0, 0, 0, // mov eax, nr
		0xcd, 0x80, // int 0x80
		0x89, 0x05, 0xf3, 0, 0, 0, // mov [rip+0xf3], eax: offset 0x100 of the page
		0xc3, // ret
	})
	entry := unsafe.Pointer(&page[0])
	fn := unsafe.Pointer(&entry) // a func value points at a word that holds the entry
	(*(*func())(unsafe.Pointer(&fn)))()
	return int(*(*int32)(unsafe.Pointer(&page[0x100])))
}
