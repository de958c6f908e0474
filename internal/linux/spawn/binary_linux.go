package spawn

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/filecopy"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
)

// init makes every program that links this package able to be the init of a sandbox, with no
// word in its main. It runs before the initialisers of whatever sorts after it, which is most of
// what is heavy.
func init() {
	if len(os.Args) == 1 && os.Args[0] == initproc.Name {
		initproc.Main(os.Exit)
	}
}

// binaryVariable names an init to use instead of the one that would be found.
const binaryVariable = "SANDBOX_RUN_INIT"

// protected is the init where the sandboxed program can not change it through /proc/self/exe (F1). It
// stays open for the life of the process.
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
	protected.file, protected.alone = f, filepath.Base(path) == initproc.Name // any other may be linked to anything
	return f, protected.alone, nil
}

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

// Ready finds the init and protects it, ahead of its first use. Whoever starts an init is told of an error.
func Ready() { _, _, _ = protectedInit() }

// OneShot says that this process is about to make its only sandbox. Most of what Ready costs is a copy
// that such a process can do without.
func OneShot() { oneShot.Store(true) }

// pin gives the file a read-only mount of its own, attached nowhere.
func pin(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("pin init %s: %w", path, err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("pin init %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), initproc.Name), nil
}

// seal copies the file to memory, where nobody can change it any more, an upgrade included.
func seal(path string) (*os.File, error) {
	fail := func(what string, err error) (*os.File, error) {
		return nil, fmt.Errorf("seal init %s: %s: %w", path, what, err)
	}
	src, err := os.Open(path)
	if err != nil {
		return fail("open", err)
	}
	defer src.Close()
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(initproc.Name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every memory file was executable
		fd, err = unix.MemfdCreate(initproc.Name, flags)
	}
	if err != nil {
		return fail("make memory file", err)
	}
	f := os.NewFile(uintptr(fd), initproc.Name)
	if err := filecopy.Within(fd, int(src.Fd()), math.MaxInt64); err != nil {
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
