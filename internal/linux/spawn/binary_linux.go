package spawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

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

// sealed holds the init in memory, where nothing can change it any more: not the sandboxed
// program through /proc/self/exe (F1), and not an upgrade while we run. It stays open for the
// life of the process.
var sealed struct {
	mu   sync.Mutex
	file *os.File
}

// sealedInit returns the descriptor of the sealed copy, which it makes at first use.
func sealedInit() (*os.File, error) {
	sealed.mu.Lock()
	defer sealed.mu.Unlock()
	if sealed.file == nil {
		f, err := seal(findBinary())
		if err != nil {
			return nil, err
		}
		sealed.file = f
	}
	return sealed.file, nil
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

// copyWithin copies a file without carrying it through our memory: a command that runs one program
// would notice.
func copyWithin(to, from int) error {
	for {
		n, err := unix.Sendfile(to, from, nil, 1<<30)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
		case err != nil:
			return err
		case n == 0:
			return nil
		}
	}
}

// Ready makes the sealed copy ahead of its first use. An error is kept for whoever starts an init.
func Ready() { _, _ = sealedInit() }

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
	if err := copyWithin(fd, int(src.Fd())); err != nil {
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
