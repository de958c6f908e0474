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

// life is how a supervisor shows that it lives: a file that it holds locked. The lock goes with the process, however that ends.
type life struct {
	dir string // empty until claimed: then the user's cache directory

	mu   sync.Mutex
	name string
	file *os.File
}

const lockSuffix = ".lock"

// claim makes the file, once.
func (l *life) claim() error {
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
		// Somebody who collects may have found it before it was locked, and removed it.
		if held && isStill(path, f) {
			l.name, l.file = name, f
			return nil
		}
		_ = f.Close()
	}
	return errors.New("somebody removes what shows that this process lives, again and again")
}

// find chooses the directory. With mu held.
func (l *life) find() error {
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

// place tells apart where supervisors show that they live: only who looks there can know whether the owner of a container does.
func (l *life) place() string {
	host, _ := os.Hostname()
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		id = []byte(host)
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(string(id)) + "\x00" + l.dir))
	return hex.EncodeToString(sum[:8])
}

// dead reports whether an owner is. Its file, if there is one, is held until bury is called, which removes it, too, if it is
// told to.
func (l *life) dead(name string) (isDead bool, bury func(remove bool)) {
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
func (l *life) names() (list []string) {
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

// release gives the life up. Twice is fine.
func (l *life) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(os.Remove(l.file.Name()), l.file.Close())
	l.file = nil
	return err
}
