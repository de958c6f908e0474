package registry

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// Slots is the maximum number of supervisors, uncollected dead ones included.
	Slots = 1 << 16
	// MaxRecord bounds the size of a record, and the part that is read.
	MaxRecord = 1 << 20

	newPrefix = ".new-"
	// createTries bounds how often a collector may take a new file before it is locked.
	createTries = 100
)

// name is the slot's name, also of its file: s0000 to sffff.
func name(slot int) string { return fmt.Sprintf("s%04x", slot) }

// slotOf is the reverse; ok is false for any other name.
func slotOf(file string) (slot int, ok bool) {
	if len(file) != 5 || file[0] != 's' || strings.ToLower(file) != file {
		return 0, false
	}
	n, err := strconv.ParseUint(file[1:], 16, 16)
	return int(n), err == nil
}

// lockedFile is a locked file under a name.
type lockedFile struct {
	dir  *os.File
	file *os.File
	path string // for messages
	name string

	mu   sync.Mutex // guards done
	done bool
}

// Entry is this supervisor's registration.
type Entry struct {
	lockedFile
	slot int
}

// Slot is the number, unique among all registrations in the directory, living or uncollected.
func (e *Entry) Slot() int { return e.slot }

// Name is the slot as a name, such as "s01a2", usable as the name of a cgroup.
func (e *Entry) Name() string { return e.name }

// Close releases the slot. It is for a supervisor without leftovers; a supervisor that may have some exits with the
// lock, or calls Abandon. Close may be called twice.
func (e *Entry) Close() error { return e.finish(true) }

// Abandon leaves the registration to a collector: for a supervisor with leftovers that lives on.
func (e *Entry) Abandon() error { return e.finish(false) }

// Leftover is the registration of a dead supervisor. This process has its lock until Remove or Release.
type Leftover struct {
	lockedFile
	// Slot and Name are those of the dead supervisor.
	Slot int
	Name string
	// Record is the supervisor's record, at most MaxRecord bytes of it.
	Record []byte
}

// Remove deletes the registration and so releases the slot. Call it when no leftover of that supervisor exists.
func (o *Leftover) Remove() error { return o.finish(true) }

// Release leaves the leftover to a later collector. After Remove it does nothing, so it may be deferred.
func (o *Leftover) Release() error { return o.finish(false) }

// finish releases the lock, after it has deleted the file if requested: in the other order a collector could take the
// file for a dead supervisor's.
func (h *lockedFile) finish(remove bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return nil
	}
	h.done = true
	var err error
	if remove {
		// The file of that name is another one: the directory was cleared, and another supervisor has the slot by now.
		if is(h.dir, h.name, h.file) {
			err = unix.Unlinkat(int(h.dir.Fd()), h.name, 0)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("registry: remove %s/%s: %w%s", h.path, h.name, err, hint(err))
		} else {
			err = nil
		}
	}
	return errors.Join(err, h.file.Close(), h.dir.Close())
}

// Alive reports whether the supervisor of that name lives. It returns true for a name that is no supervisor's, because
// such an entry must not be collected.
func Alive(dir, name string) bool {
	if _, ok := slotOf(name); !ok {
		return true
	}
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return !errors.Is(err, unix.ENOENT)
	}
	defer unix.Close(fd)
	return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// Register claims a free slot for this process in dir, which it makes if missing and which must belong to this user
// alone. The record is for the collector of this process's leftovers. The slot is held until Close or the end of the
// process.
func Register(dir string, record []byte) (*Entry, error) {
	if len(record) > MaxRecord {
		return nil, fmt.Errorf("registry: a record of %d bytes, at most %d are kept: %w", len(record), MaxRecord, unix.EFBIG)
	}
	at, err := openDir(dir, true)
	if err != nil {
		return nil, err
	}
	file, temporary, err := create(at, dir, record)
	if err != nil {
		_ = at.Close()
		return nil, err
	}
	slot, err := claim(at, dir, temporary)
	if err != nil {
		_ = unix.Unlinkat(int(at.Fd()), temporary, 0)
		_ = file.Close()
		_ = at.Close()
		return nil, err
	}
	return &Entry{lockedFile: lockedFile{dir: at, file: file, path: dir, name: name(slot)}, slot: slot}, nil
}

// Adopt takes the slot of a supervisor that is no longer registered but has left something, and returns a Leftover with an
// empty record. It returns nil if the slot is in use, by a living or a dead supervisor, or if the name is invalid.
func Adopt(dir, file string) (*Leftover, error) {
	slot, ok := slotOf(file)
	if !ok {
		return nil, nil
	}
	at, err := openDir(dir, true)
	if err != nil {
		return nil, err
	}
	locked, temporary, err := create(at, dir, nil)
	if err == nil {
		if err = unix.Renameat2(int(at.Fd()), temporary, int(at.Fd()), file, unix.RENAME_NOREPLACE); err == nil {
			return &Leftover{lockedFile: lockedFile{dir: at, file: locked, path: dir, name: file}, Slot: slot, Name: file}, nil
		}
		_ = unix.Unlinkat(int(at.Fd()), temporary, 0)
		_ = locked.Close()
		if err = fmt.Errorf("registry: adopt %s/%s: %w%s", dir, file, err, hint(err)); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	_ = at.Close()
	return nil, err
}

// create makes a file under an unused name, locks it and writes the record.
func create(at *os.File, dir string, record []byte) (*os.File, string, error) {
	for range createTries {
		temporary := newPrefix + hex.EncodeToString(random(8))
		fd, err := unix.Openat(int(at.Fd()), temporary, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("registry: create a file in %s: %w%s", dir, err, hint(err))
		}
		file := os.NewFile(uintptr(fd), dir+"/"+temporary)
		locked, err := lock(fd)
		if err != nil {
			_ = unix.Unlinkat(int(at.Fd()), temporary, 0)
			_ = file.Close()
			return nil, "", fmt.Errorf("registry: lock a file in %s: %w%s", dir, err, hint(err))
		}
		if !locked || !linked(fd) { // a collector was faster, and removes the file
			_ = file.Close()
			continue
		}
		if _, err := file.Write(record); err != nil {
			_ = unix.Unlinkat(int(at.Fd()), temporary, 0)
			_ = file.Close()
			return nil, "", fmt.Errorf("registry: write a record to %s: %w%s", dir, err, hint(err))
		}
		return file, temporary, nil
	}
	return nil, "", fmt.Errorf("registry: create a file in %s: collectors took it %d times: %w", dir, createTries, unix.EAGAIN)
}

// claim renames the file to the first free slot, starting at a random one, so that a slot, and its user ids, are not
// reused soon.
func claim(at *os.File, dir, temporary string) (int, error) {
	start := random(2)
	first := int(start[0])<<8 | int(start[1])
	for i := range Slots {
		slot := (first + i) % Slots
		err := unix.Renameat2(int(at.Fd()), temporary, int(at.Fd()), name(slot), unix.RENAME_NOREPLACE)
		if err == nil {
			return slot, nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("registry: claim %s/%s: %w%s", dir, name(slot), err, hint(err))
		}
	}
	return 0, fmt.Errorf("registry: all %d slots in %s are taken: %w; collect what dead supervisors left: sandbox-run gc", Slots, dir,
		unix.EUSERS)
}

// Dead lists the dead supervisors, each locked by this process: call Remove or Release for every one. It leaves out
// those that another collector has locked. An unreadable entry does not hide the others: Dead returns the others
// together with the error. A missing directory means that there are none.
func Dead(dir string) ([]*Leftover, error) {
	at, err := openDir(dir, false)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer at.Close()
	files, err := at.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("registry: list %s: %w", dir, err)
	}
	var dead []*Leftover
	var errs []error
	for _, file := range files {
		slot, ok := slotOf(file)
		if !ok && !strings.HasPrefix(file, newPrefix) {
			continue // not a registration
		}
		h, err := take(at, dir, file)
		if err != nil {
			errs = append(errs, fmt.Errorf("registry: look at %s/%s: %w%s", dir, file, err, hint(err)))
		}
		if h == nil {
			continue
		}
		if !ok {
			// Its maker died before it had leftovers, or will notice that the file is unlinked.
			errs = append(errs, h.finish(true))
			continue
		}
		record, err := readRecord(h.file)
		if err != nil {
			errs = append(errs, fmt.Errorf("registry: read %s/%s: %w", dir, file, err), h.finish(false))
			continue
		}
		dead = append(dead, &Leftover{lockedFile: lockedFile{dir: h.dir, file: h.file, path: dir, name: file},
			Slot: slot, Name: file, Record: record})
	}
	return dead, errors.Join(errs...)
}

// take locks a file if it is not locked. It returns nil if another process has the lock, or if the file is gone.
func take(at *os.File, dir, file string) (*lockedFile, error) {
	fd, err := unix.Openat(int(at.Fd()), file, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir+"/"+file)
	locked, err := lock(fd)
	// Before the lock was taken, the file may have been removed, or a new file may have got its name: then the lock is
	// worthless.
	if err != nil || !locked || !is(at, file, f) {
		_ = f.Close()
		return nil, err
	}
	own, err := unix.FcntlInt(at.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &lockedFile{dir: os.NewFile(uintptr(own), dir), file: f, path: dir, name: file}, nil
}

// lock takes the lock of a file if it is free.
func lock(fd int) (bool, error) {
	for {
		switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}

func linked(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Nlink > 0
}

// is reports whether the name refers to that file.
func is(at *os.File, name string, file *os.File) bool {
	var a, b unix.Stat_t
	return unix.Fstat(int(file.Fd()), &a) == nil && a.Nlink > 0 && a.Mode&unix.S_IFMT == unix.S_IFREG &&
		unix.Fstatat(int(at.Fd()), name, &b, unix.AT_SYMLINK_NOFOLLOW) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

func readRecord(f *os.File) ([]byte, error) {
	var record []byte
	buf := make([]byte, 4096)
	for len(record) < MaxRecord {
		n, err := unix.Pread(int(f.Fd()), buf, int64(len(record)))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		record = append(record, buf[:n]...)
	}
	return record[:min(len(record), MaxRecord)], nil
}

// openDir opens the directory and refuses one that another user could write to: a user who can make files there can have
// any cgroup or directory "collected".
func openDir(path string, make bool) (*os.File, error) {
	dir, op, err := OpenPrivate(path, make)
	if err != nil {
		return nil, fmt.Errorf("registry: %s directory %s: %w%s", op, path, err, hint(err))
	}
	return dir, nil
}

// OpenPrivate opens a directory without following a link at its end, and refuses one that another user could write to. If make is set,
// it makes a missing one. op names the step that failed: open, make, stat or use.
func OpenPrivate(path string, make bool) (dir *os.File, op string, err error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0)
	if errors.Is(err, unix.ENOENT) && make {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, "make", err
		}
		if err := unix.Mkdir(path, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, "make", err
		}
		fd, err = unix.Open(path, flags, 0)
	}
	if err != nil {
		return nil, "open", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, "stat", err
	}
	if uid := unix.Geteuid(); int(st.Uid) != uid || st.Mode&0o077 != 0 {
		_ = unix.Close(fd)
		return nil, "use", fmt.Errorf("owner %d, mode %04o; it must belong to %d with mode 0700: %w", st.Uid, st.Mode&0o7777, uid, unix.EPERM)
	}
	return os.NewFile(uintptr(fd), path), "", nil
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func hint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "; the disk is full: free some space or use another directory"
	case errors.Is(err, unix.EROFS):
		return "; use a directory on a writable file system, such as /run"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
		return "; use a directory on a local file system, such as /run"
	}
	return ""
}
