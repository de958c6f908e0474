package spawn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/filecopy"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
)

// init makes every program that links this package able to be the init of a sandbox, without a line in its main. It runs
// before the initialisers of packages that sort after this one, which include most of the expensive ones.
func init() {
	if len(os.Args) == 1 && os.Args[0] == initproc.Name {
		initproc.Main(os.Exit)
	}
}

// binaryVariable names an init to use instead of the found one.
const binaryVariable = "SANDBOX_RUN_INIT"

// protected is the init in a place where the sandboxed program can not change it through /proc/self/exe (F1). It stays
// open for the life of the process.
var protected struct {
	mu    sync.Mutex
	file  *os.File
	alone bool // it is linked statically
}

// oneShot: this process lives as long as a single sandbox, and so needs no copy to be safe from an
// upgrade of the file while it runs.
var oneShot atomic.Bool

// protectedInit returns the init's descriptor, made at first use, and whether it needs no other file to start.
func protectedInit() (f *os.File, alone bool, err error) {
	protected.mu.Lock()
	defer protected.mu.Unlock()
	if protected.file != nil {
		return protected.file, protected.alone, nil
	}
	path := findBinary()
	if oneShot.Load() {
		f, err = pin(path)
	}
	if f == nil {
		f, err = seal(path)
	}
	if err != nil {
		return nil, false, err
	}
	protected.file, protected.alone = f, isStatic(f)
	return f, protected.alone, nil
}

// copyInit copies an init that could not be executed from its place.
func copyInit() error {
	protected.mu.Lock()
	defer protected.mu.Unlock()
	f, err := seal(findBinary())
	if err == nil {
		protected.file, protected.alone = f, isStatic(f) // the old one may be in use
	}
	return err
}

// isStatic reports whether an executable names no interpreter, which would open files of its own.
func isStatic(f *os.File) bool {
	// A descriptor without the right to read is reopened.
	r, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return false
	}
	defer r.Close()
	// (Package debug/elf would add 164 KB to the command line's executable.)
	var header [64]byte
	if _, err := r.ReadAt(header[:], 0); err != nil || string(header[:5]) != "\x7fELF\x02" {
		return false
	}
	at, size, count := binary.LittleEndian.Uint64(header[32:]), binary.LittleEndian.Uint16(header[54:]),
		binary.LittleEndian.Uint16(header[56:])
	for i := range uint64(count) {
		var kind [4]byte
		if _, err := r.ReadAt(kind[:], int64(at+i*uint64(size))); err != nil || binary.LittleEndian.Uint32(kind[:]) == elfInterpreter {
			return false
		}
	}
	return count > 0
}

const elfInterpreter = 3 // PT_INTERP

// findBinary prefers the small executable: it starts in half the time of a large one.
func findBinary() string {
	if p := os.Getenv(binaryVariable); p != "" {
		return p
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), initproc.Name)
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return beside
		}
	}
	return "/proc/self/exe"
}

// File returns the path of the init on the host, without links, and whether it needs no other file to start: for
// backends whose runtime starts it.
func File() (file string, alone bool, err error) {
	if file, err = filepath.EvalSymlinks(findBinary()); err == nil { //nolint:forbidigo // our own executable, where no sandbox can write
		file, err = filepath.Abs(file)
	}
	if err != nil {
		return "", false, fmt.Errorf("find init: %w", err)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", false, fmt.Errorf("find init: %w", err)
	}
	defer f.Close()
	return file, isStatic(f), nil
}

// Ready finds the init and protects it before its first use. The start of an init reports an error.
func Ready() { _, _, _ = protectedInit() }

// OneShot says that this process is about to make its only sandbox. Most of the cost of Ready is a copy that such a
// process does not need.
func OneShot() { oneShot.Store(true) }

// pin gives the file a read-only mount of its own, attached nowhere. The init's id when it is executed is no user
// of the host: every user must be allowed to execute the file.
func pin(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("pin init %s: %w", path, err)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("pin init %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o001 == 0 || fs.Flags&unix.ST_NOEXEC != 0 {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("pin init %s: %w", path, unix.EACCES)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("pin init %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), initproc.Name), nil
}

// seal copies the file to memory, where no process can change it any more; an upgrade does not change it either.
func seal(path string) (*os.File, error) {
	fail := func(what string, err error) (*os.File, error) {
		return nil, fmt.Errorf("seal init %s: %s: %w", path, what, err)
	}
	src, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail("open", err)
	}
	defer src.Close()
	if st, err := src.Stat(); err != nil || !st.Mode().IsRegular() {
		return fail("open", errors.Join(err, errors.New("not a file")))
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(initproc.Name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every memory file was executable
		fd, err = unix.MemfdCreate(initproc.Name, flags)
	}
	if err != nil {
		return fail("make memory file", err)
	}
	f := os.NewFile(uintptr(fd), initproc.Name)
	if _, err := filecopy.Within(fd, int(src.Fd()), math.MaxInt64); err != nil {
		f.Close()
		return fail("copy", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return fail("seal", err)
	}
	return f, nil
}
