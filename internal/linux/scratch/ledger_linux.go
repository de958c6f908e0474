package scratch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// ledgerDir is the registry directory of root's supervisors, and ledgerName the file in it that all of them share.
const (
	ledgerDir  = "/run/sandbox-run"
	ledgerName = "disks"
)

// ledger records how much the disks of every process may still take from each file system. The file is an array of
// records of two 64-bit numbers: the device number of a file system, and bytes. The first record is empty: its lock
// guards the file. Each other record belongs to the process that has a lock on it. The locks belong to open files, so
// the kernel drops them when a process ends: the record of a dead process no longer counts, and is used again.
type ledger struct {
	file *os.File
	own  map[uint64]int64 // offset of this process's record of a file system
}

const recordSize = 16

func openLedger() (*ledger, error) {
	dir, err := openCacheDir(ledgerDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), ledgerName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s/%s: %w%s", ledgerDir, ledgerName, err, hintFor(err))
	}
	return &ledger{file: os.NewFile(uintptr(fd), ledgerName), own: map[uint64]int64{}}, nil
}

// linked is false for a deleted file: other processes use another one by now.
func (l *ledger) linked() bool {
	var st unix.Stat_t
	return unix.Fstat(int(l.file.Fd()), &st) == nil && st.Nlink > 0
}

// lock changes the lock on one record, or queries a conflicting lock of another process.
func (l *ledger) lock(command int, kind int16, at int64) (free bool, err error) {
	for {
		lk := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: recordSize}
		err := unix.FcntlFlock(l.file.Fd(), command, &lk)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
			return false, nil
		}
		return lk.Type == unix.F_UNLCK || command != unix.F_OFD_GETLK, err
	}
}

// exchange records how much the disks of this process may still take from a file system, and returns the sum of all
// other living processes.
func (l *ledger) exchange(dev, left uint64) (others uint64, err error) {
	fail := func(err error) (uint64, error) {
		return 0, fmt.Errorf("use %s/%s: %w", ledgerDir, ledgerName, err)
	}
	if _, err := l.lock(unix.F_OFD_SETLKW, unix.F_WRLCK, 0); err != nil {
		return fail(err)
	}
	defer func() { _, _ = l.lock(unix.F_OFD_SETLK, unix.F_UNLCK, 0) }()
	var st unix.Stat_t
	if err := unix.Fstat(int(l.file.Fd()), &st); err != nil {
		return fail(err)
	}
	records := make([]byte, st.Size/recordSize*recordSize)
	if n, err := unix.Pread(int(l.file.Fd()), records, 0); err != nil || n != len(records) {
		return fail(errors.Join(err, unix.EIO))
	}
	mine, found := l.own[dev]
	for at := int64(recordSize); at < int64(len(records)); at += recordSize {
		bytes := binary.LittleEndian.Uint64(records[at+8:])
		if binary.LittleEndian.Uint64(records[at:]) != dev || bytes == 0 || found && at == mine {
			continue
		}
		switch dead, err := l.lock(unix.F_OFD_GETLK, unix.F_WRLCK, at); {
		case err != nil:
			return fail(err)
		case !dead:
			others += bytes
		}
	}
	for at := int64(recordSize); !found; at += recordSize {
		if slices.Contains(slices.Collect(maps.Values(l.own)), at) { // a lock never conflicts with its own open file
			continue
		}
		if found, err = l.lock(unix.F_OFD_SETLK, unix.F_WRLCK, at); err != nil {
			return fail(err)
		}
		mine = at
	}
	l.own[dev] = mine
	var record [recordSize]byte
	binary.LittleEndian.PutUint64(record[:], dev)
	binary.LittleEndian.PutUint64(record[8:], left)
	if _, err := unix.Pwrite(int(l.file.Fd()), record[:], mine); err != nil {
		return fail(err)
	}
	return others, nil
}

// hostDisks are the file systems on which this process has had disks.
var hostDisks struct {
	sync.Mutex // guards the fields below
	ledger     *ledger
	open       map[uint64]*hostDisk
}
