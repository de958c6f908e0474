package hostile

import "golang.org/x/sys/unix"

func int80(nr int32) int32

// archCalls are those that this architecture has besides.
func archCalls(plain func(id, name string, nr uintptr, args ...uintptr)) {
	plain("S5", "modify_ldt", unix.SYS_MODIFY_LDT, 0, 0, 0) // to read it, of which there is nothing
	plain("S5", "iopl", unix.SYS_IOPL, bad)
	plain("S5", "ioperm", unix.SYS_IOPERM, bad, bad, 1)
	plain("S5", "sysfs", unix.SYS_SYSFS, bad)
	plain("S5", "ustat", unix.SYS_USTAT, 0, bad)
}
