package build

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// Content of the directory of builds:
//
//	lock                 held briefly by a process that creates or removes a working directory, or changes packages and lists
//	packages/*.deb       packages that apt downloaded and verified
//	NAME.list            digest and file name of each package of the image's last build
//	work-RANDOM/         working directory of a build: lock, archives/, tmp/, root.tar, layer.tar.gz
const (
	lockName     = "lock"
	packagesName = "packages"
	listSuffix   = ".list"
	workPrefix   = "work-"
	// lockTimeout bounds the wait for other builds, which hash packages or remove the directory of a dead build under the lock.
	lockTimeout = 10 * time.Minute
	// removeTimeout bounds the removal of a working directory, for which ctx may be cancelled already.
	removeTimeout = 2 * time.Minute
)

// work is the working directory of a running build.
type work struct {
	tools *tools
	dir   string // of all builds
	own   string // of this one
	lock  *os.File
}

func (w *work) path(name string) string { return filepath.Join(w.own, name) }

// newWork creates and locks the working directory of one build, and removes those of dead builds.
func newWork(ctx context.Context, t *tools, dir string) (*work, error) {
	dir, err := directory(dir)
	if err != nil {
		return nil, err
	}
	if t.root { // the user _apt downloads into it
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	held, err := lockDirectory(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if err := collectHeld(ctx, t, dir); err != nil {
		return nil, err
	}
	w := &work{tools: t, dir: dir, own: filepath.Join(dir, workPrefix+rand.Text()[:10])}
	if err := os.Mkdir(w.own, 0o755); err != nil {
		return nil, err
	}
	// The programs of the build inherit the lock (ExtraFiles): it is held until the last of them ends.
	w.lock, err = os.OpenFile(w.path(lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = userdir.Lock(w.lock, false, 0)
	}
	for _, name := range []string{"archives", "tmp"} {
		if err == nil {
			err = os.Mkdir(w.path(name), 0o755)
		}
	}
	if err != nil {
		return nil, errors.Join(err, w.remove())
	}
	return w, nil
}

// lockDirectory takes the lock of the directory of builds. Closing the file releases it.
func lockDirectory(ctx context.Context, dir string) (*os.File, error) {
	d, err := userdir.OpenDir(dir, userdir.Write)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	f, err := d.Open(lockName, userdir.Write)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTimeout); ; {
		err := userdir.Lock(f, false, time.Second)
		if err == nil {
			return f, nil
		}
		if ctx.Err() != nil || !errors.Is(err, userdir.ErrBusy) || time.Now().After(end) {
			_ = f.Close()
			return nil, errors.Join(ctx.Err(), fmt.Errorf("%s: %w: another build is starting or ending there", filepath.Join(dir, lockName), err))
		}
	}
}

// abandoned lists the working directories of dead builds. The caller holds the directory's lock, so no build is creating one.
func abandoned(dir string) (works []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), workPrefix) || !e.IsDir() {
			continue
		}
		own := filepath.Join(dir, e.Name())
		lock, err := os.OpenFile(filepath.Join(own, lockName), os.O_RDWR, 0)
		switch {
		case errors.Is(err, os.ErrNotExist): // the build was killed before it created the lock, or during the removal
		case err != nil:
			return nil, err
		default:
			err := userdir.Lock(lock, false, 0)
			_ = lock.Close() // no other process takes it while the caller holds the directory's lock
			if errors.Is(err, userdir.ErrBusy) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		works = append(works, own)
	}
	return works, nil
}

// collectHeld removes the working directories of dead builds. The caller holds the directory's lock.
func collectHeld(ctx context.Context, t *tools, dir string) error {
	works, err := abandoned(dir)
	for _, own := range works {
		if err := removeTree(ctx, t, own); err != nil {
			return err
		}
	}
	return err
}

// remove removes the working directory. It does not take the directory's lock: a concurrent collector removes the same files.
func (w *work) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	err := removeTree(ctx, w.tools, w.own)
	if w.lock != nil {
		_ = w.lock.Close()
	}
	return err
}

// removeTree removes a working directory. Files of an ordinary user's build may belong to the user's subordinate ids; only root of a user
// namespace can remove those.
func removeTree(ctx context.Context, t *tools, dir string) error {
	err := removal.Tree(ctx, dir)
	if err == nil || t.root {
		return err
	}
	args := append(t.namespaces(), "rm", "-rf", "--one-file-system", "--", dir)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove %s: %w: %s", dir, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// linkPackages links kept packages into the build: those of the image's last build, or all if there was none. It removes a package that
// has changed since it was kept.
func (w *work) linkPackages(ctx context.Context, name string) error {
	held, err := lockDirectory(ctx, w.dir)
	if err != nil {
		return err
	}
	defer held.Close()
	sums, err := w.sums()
	if err != nil {
		return err
	}
	wanted, err := readList(filepath.Join(w.dir, name+listSuffix))
	if err != nil || len(wanted) == 0 {
		wanted = sums
	}
	for file, sum := range wanted {
		kept := filepath.Join(w.dir, packagesName, file)
		is, err := fileSum(kept)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if is != sum {
			if err := os.Remove(kept); err != nil {
				return err
			}
			continue
		}
		if err := os.Link(kept, filepath.Join(w.path("archives"), file)); err != nil {
			return err
		}
	}
	return nil
}

// sums returns the digests of all packages in the lists.
func (w *work) sums() (map[string]string, error) {
	lists, err := filepath.Glob(filepath.Join(w.dir, "*"+listSuffix))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, file := range lists {
		list, err := readList(file)
		if err != nil {
			continue // not written by keepPackages; apt downloads its packages again
		}
		maps.Copy(all, list)
	}
	return all, nil
}

// keepPackages keeps the packages of the build for the next one, and removes those that no image has any more.
func (w *work) keepPackages(ctx context.Context, name string, installed map[string]string) error {
	held, err := lockDirectory(ctx, w.dir)
	if err != nil {
		return err
	}
	defer held.Close()
	packages := filepath.Join(w.dir, packagesName)
	if err := os.MkdirAll(packages, 0o755); err != nil {
		return err
	}
	used, err := filepath.Glob(filepath.Join(w.path("archives"), "*.deb"))
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, file := range used {
		// NAME_VERSION_ARCHITECTURE.deb. Packages that are not installed come from linkPackages.
		parts := strings.Split(filepath.Base(file), "_")
		if len(parts) != 3 || strings.ReplaceAll(installed[parts[0]], ":", "%3a") != parts[1] {
			continue
		}
		sum, err := fileSum(file)
		if err != nil {
			return err
		}
		kept := filepath.Join(packages, filepath.Base(file))
		_ = os.Remove(kept) // os.Link does not replace a file
		if err := os.Link(file, kept); err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s %s\n", sum, filepath.Base(file))
	}
	next := w.path("list")
	if err := os.WriteFile(next, []byte(list.String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(w.dir, name+listSuffix)); err != nil {
		return err
	}
	wanted, err := w.sums()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(packages)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, ok := wanted[e.Name()]; !ok {
			if err := os.Remove(filepath.Join(packages, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// readList reads a list that keepPackages wrote. A name that is not that of a package makes the whole list invalid.
func readList(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		sum, name, _ := strings.Cut(lines.Text(), " ")
		if len(sum) != 2*sha256.Size || filepath.Base(name) != name || !strings.HasSuffix(name, ".deb") {
			return nil, fmt.Errorf("%s: %q is not a digest and a file name", file, lines.Text())
		}
		list[name] = sum
	}
	return list, lines.Err()
}

func fileSum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
