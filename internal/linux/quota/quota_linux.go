package quota

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	// ErrUnsupported says that the kernel or the file system has no project quotas.
	ErrUnsupported = errors.New("no project quotas")
	// ErrNotEnforced says that the file system counts what projects have, and refuses nothing.
	ErrNotEnforced = errors.New("project quotas are counted, not enforced")
)

// Amount is what a project has, or may have.
type Amount struct{ Bytes, Inodes uint64 }

// Of linux/quota.h, linux/dqblk_xfs.h and linux/fs.h; equal on both architectures.
const (
	prjQuota = 2
	getQuota = 0x800007<<8 | prjQuota   // Q_GETQUOTA
	setQuota = 0x800008<<8 | prjQuota   // Q_SETQUOTA
	getState = ('X'<<8|8)<<8 | prjQuota // Q_XGETQSTATV, which answers for ext4 as well

	projectsCounted  = 1 << 4 // FS_QUOTA_PDQ_ACCT
	projectsEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD

	limitUnit    = 1024       // of hard limits on bytes
	limitsValid  = 1 | 1<<2   // QIF_BLIMITS, QIF_ILIMITS
	getAttribute = 0x801c581f // FS_IOC_FSGETXATTR
	setAttribute = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritFlag  = 0x200      // FS_XFLAG_PROJINHERIT
)

// ifDqblk is struct if_dqblk.
type ifDqblk struct {
	bytesHard, bytesSoft, bytes    uint64
	inodesHard, inodesSoft, inodes uint64
	bytesGrace, inodesGrace        uint64
	valid                          uint32
	_                              uint32
}

// quotaState is struct fs_quota_statv, of which only the flags are of interest.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       [156]byte
}

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, copyExtentSize uint32
	reserved                                            [8]byte
}

// Check reports whether limits of projects are enforced on the file system of a descriptor: nil, or an error that wraps
// ErrUnsupported or ErrNotEnforced. It needs no privileges.
func Check(fd int) error {
	if err := quotactl(-1, getState, 0, nil); errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: the kernel has no quotactl_fd (Linux 5.14, CONFIG_QUOTACTL)", ErrUnsupported)
	}
	state := quotaState{version: 1} // FS_QSTATV_VERSION1
	err := quotactl(fd, getState, 0, unsafe.Pointer(&state))
	switch {
	case err != nil:
		return fmt.Errorf("%w: the file system has none, or they are off (%w)", ErrUnsupported, err)
	case state.flags&projectsCounted == 0:
		return fmt.Errorf("%w: they are off on the file system", ErrUnsupported)
	case state.flags&projectsEnforced == 0:
		return ErrNotEnforced
	}
	return nil
}

// Read returns what a project has, and its hard limits, of which zero is none. A project that the file system has never
// heard of has nothing.
func Read(fd int, project uint32) (used, most Amount, err error) {
	var q ifDqblk
	if err := quotactl(fd, getQuota, project, unsafe.Pointer(&q)); err != nil && !errors.Is(err, unix.ENOENT) {
		return used, most, fmt.Errorf("read the quota of project %d: %w", project, err)
	}
	return Amount{q.bytes, q.inodes}, Amount{q.bytesHard * limitUnit, q.inodesHard}, nil
}

// SetLimits sets the hard limits of a project, rounded down to whole KiB, and no soft ones. The zero Amount drops them.
func SetLimits(fd int, project uint32, most Amount) error {
	q := ifDqblk{bytesHard: most.Bytes / limitUnit, inodesHard: most.Inodes, valid: limitsValid}
	if err := quotactl(fd, setQuota, project, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("set the quota of project %d: %w", project, err)
	}
	return nil
}

// Project returns the id of an open file or directory, and whether what is made in it gets the same.
func Project(fd int) (project uint32, inherited bool, err error) {
	a, err := readAttributes(fd)
	return a.project, a.flags&inheritFlag != 0, err
}

// SetProject gives an open regular file or directory an id, unless it has it. With inherited, everything that is made in the directory
// gets the same.
func SetProject(fd int, project uint32, inherited bool) error {
	a, err := readAttributes(fd)
	if err != nil {
		return err
	}
	want := a
	want.project = project
	want.flags &^= inheritFlag
	if inherited {
		want.flags |= inheritFlag
	}
	if want == a {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), setAttribute, uintptr(unsafe.Pointer(&want))); errno != 0 {
		return fmt.Errorf("set project %d: %w", project, errno)
	}
	return nil
}

func readAttributes(fd int) (a attributes, err error) {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getAttribute, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return a, fmt.Errorf("read the project: %w", errno)
	}
	return a, nil
}

func quotactl(fd int, command, project uint32, data unsafe.Pointer) error {
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command), uintptr(project), uintptr(data), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
