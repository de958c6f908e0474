package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// registrationLock shows that a supervisor runs: a file that it holds locked. The kernel releases the lock when the process ends.
type registrationLock struct {
	dir string // empty until registered: then the user's cache directory

	mu   sync.Mutex
	name string
	file *os.File
}

const lockSuffix = ".lock"

// register makes and locks the file, once.
func (l *registrationLock) register() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		return nil
	}
	if err := l.find(); err != nil {
		return err
	}
	for range 10 {
		name := random(8)
		path := filepath.Join(l.dir, name+lockSuffix)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		held, err := tryLock(f)
		if err != nil {
			_ = f.Close()
			_ = os.Remove(path)
			return err
		}
		// Another process that collects may have found the file before it was locked, and removed it.
		if held && isStill(path, f) {
			l.name, l.file = name, f
			return nil
		}
		_ = f.Close()
	}
	return errors.New("the registration file of this process is removed again and again")
}

// find chooses the directory. The caller holds mu.
func (l *registrationLock) find() error {
	if l.dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = filepath.Join(os.TempDir(), fmt.Sprintf("sandbox-run-%d", os.Getuid()))
		}
		l.dir = filepath.Join(cache, "sandbox-run", "docker")
	}
	return os.MkdirAll(l.dir, 0o700)
}

func isStill(path string, f *os.File) bool {
	a, errA := os.Stat(path)
	b, errB := f.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// place identifies the directory of the registration locks: only a process that uses it can know whether the owner of a container runs.
func (l *registrationLock) place() string {
	host, _ := os.Hostname()
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		id = []byte(host)
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(string(id)) + "\x00" + l.dir))
	return hex.EncodeToString(sum[:8])
}

// lockDead reports whether an owner has ended. Then its file, if there is one, stays locked until release is called, which also removes
// it on request.
func (l *registrationLock) lockDead(name string) (isDead bool, release func(remove bool)) {
	nothing := func(bool) {}
	if name == l.name || name == "" || strings.ContainsAny(name, `/\.`) {
		return false, nothing
	}
	path := filepath.Join(l.dir, name+lockSuffix)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return true, nothing
	}
	if err != nil {
		return false, nothing
	}
	held, err := tryLock(f)
	if err != nil || !held {
		_ = f.Close()
		return false, nothing
	}
	return true, func(remove bool) {
		if remove {
			_ = os.Remove(path)
		}
		_ = f.Close()
	}
}

// names are the owners that have a file.
func (l *registrationLock) names() (list []string) {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), lockSuffix); ok {
			list = append(list, name)
		}
	}
	return list
}

// release unlocks and removes the file. It may be called twice.
func (l *registrationLock) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(os.Remove(l.file.Name()), l.file.Close())
	l.file = nil
	return err
}
