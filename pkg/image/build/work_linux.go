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

// What lies in the directory of builds:
//
//	lock                 held for moments, by a process that makes or collects works, or changes what follows
//	packages/*.deb       as they were downloaded and checked by apt
//	NAME.list            of the image that was built last: digest and file name of each package
//	work-RANDOM/         a build that is under way: lock, archives/, tmp/, root.tar, layer.tar.gz
const (
	lockName     = "lock"
	packagesName = "packages"
	listSuffix   = ".list"
	workPrefix   = "work-"
	// lockTimeout is how long others may take to look at their packages, or to remove what a dead build has left.
	lockTimeout = 10 * time.Minute
	// removing is how long the end of a build may take: it is not ctx's, which may be cancelled.
	removing = 2 * time.Minute
)

// work is a build that is under way.
type work struct {
	tools *tools
	dir   string // of all builds
	own   string // of this one
	lock  *os.File
}

func (w *work) path(name string) string { return filepath.Join(w.own, name) }

// newWork makes a directory for one build, locked, and removes what dead builds have left.
func newWork(ctx context.Context, t *tools, dir string) (*work, error) {
	dir, err := directory(dir)
	if err != nil {
		return nil, err
	}
	if t.root { // for apt's downloads, which are another user's
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	held, err := hold(ctx, dir)
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
	// No O_CLOEXEC in the child: the programs of the build inherit it, and hold the lock as long as one of them lives.
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

// hold opens the directory of builds and takes its lock, until the file is closed.
func hold(ctx context.Context, dir string) (*os.File, error) {
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

// abandoned lists works whose lock is free. The directory's lock is held, so none is just being made.
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
		case errors.Is(err, os.ErrNotExist): // killed before there was one, or half removed
		case err != nil:
			return nil, err
		default:
			err := userdir.Lock(lock, false, 0)
			_ = lock.Close() // no other process can take it while the directory's is held
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

// collectHeld removes what is abandoned. The directory's lock is held.
func collectHeld(ctx context.Context, t *tools, dir string) error {
	works, err := abandoned(dir)
	for _, own := range works {
		if err := removeTree(ctx, t, own); err != nil {
			return err
		}
	}
	return err
}

// remove ends the work. It does not wait for the directory's lock: a collector may be faster, and that is fine.
func (w *work) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), removing)
	defer cancel()
	err := removeTree(ctx, w.tools, w.own)
	if w.lock != nil {
		_ = w.lock.Close()
	}
	return err
}

// removeTree removes what a build has made. Of an ordinary user's build, files may belong to subordinate ids of theirs, which only a user
// namespace can remove.
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

// seed gives the build the packages that are here: those the image had last time, or all if it is built for the first time.
// A file that has changed since it was kept is dropped.
func (w *work) seed(ctx context.Context, name string) error {
	held, err := hold(ctx, w.dir)
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

// sums are the digests of all packages that the lists name.
func (w *work) sums() (map[string]string, error) {
	lists, err := filepath.Glob(filepath.Join(w.dir, "*"+listSuffix))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, file := range lists {
		list, err := readList(file)
		if err != nil {
			continue // not written by keep; its packages are downloaded again
		}
		maps.Copy(all, list)
	}
	return all, nil
}

// keep keeps the packages of the build for the next one, and drops those that no image has any more.
func (w *work) keep(ctx context.Context, name string, installed map[string]string) error {
	held, err := hold(ctx, w.dir)
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
		// NAME_VERSION_ARCHITECTURE.deb; others are left from earlier builds.
		parts := strings.Split(filepath.Base(file), "_")
		if len(parts) != 3 || strings.ReplaceAll(installed[parts[0]], ":", "%3a") != parts[1] {
			continue
		}
		sum, err := fileSum(file)
		if err != nil {
			return err
		}
		kept := filepath.Join(packages, filepath.Base(file))
		_ = os.Remove(kept) // it may be another file of that name
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

// readList reads what keep has written. A name that is none of a package makes all of it wrong.
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
