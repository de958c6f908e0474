package docker

import (
	"syscall"
)

// linuxEPROTO stands for a malformed answer.
const linuxEPROTO = 71

// linuxErrnos are the errors that callers test for, by Linux's numbers: the client may run on a system with others.
var linuxErrnos = map[uint32]syscall.Errno{
	1: syscall.EPERM, 2: syscall.ENOENT, 5: syscall.EIO, 6: syscall.ENXIO, 7: syscall.E2BIG, 8: syscall.ENOEXEC, 11: syscall.EAGAIN,
	12: syscall.ENOMEM,
	13: syscall.EACCES, 16: syscall.EBUSY, 17: syscall.EEXIST, 18: syscall.EXDEV, 19: syscall.ENODEV, 20: syscall.ENOTDIR, 21: syscall.EISDIR,
	22: syscall.EINVAL, 24: syscall.EMFILE, 26: syscall.ETXTBSY, 28: syscall.ENOSPC, 30: syscall.EROFS, 32: syscall.EPIPE,
	36: syscall.ENAMETOOLONG,
	39: syscall.ENOTEMPTY, 40: syscall.ELOOP, 122: syscall.EDQUOT,
}

// errnoOf is a Linux errno as an errno of this system.
func errnoOf(n uint32) syscall.Errno {
	if e, ok := linuxErrnos[n]; ok {
		return e
	}
	return syscall.Errno(n)
}
