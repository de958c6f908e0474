package toolchain

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Image is a root in which toolchains are looked for instead of on this machine. Its programs are untrusted: they run through Query
// only, in a sandbox. Their answers decide what is run in sandboxes of that image and nothing else.
type Image struct {
	// ID is the digest of the image: what was found in it once stays valid. Without one it is searched each time.
	ID   string
	Name string // for errors
	// Dir is where it lies unpacked. Empty is an image that only a backend can read: its programs are tried by name.
	Dir  string
	Path string // its PATH; empty is the usual one
	// Query runs a program in a sandbox of the image. Its error is of kind sandbox.ErrNotStarted where there is no such program.
	Query func(ctx context.Context, args ...string) (Answer, error)
}

// usualPath is that of sandboxes, which an image without one has.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// FindIn finds a toolchain in an image. It has no mounts: all of it is there already.
func (f *Finder) FindIn(ctx context.Context, d *Description, img Image) (*Toolchain, error) {
	search := func() (*Toolchain, []string, error) {
		s := &Search{ctx: ctx, d: d, image: &imageRoot{Image: img}}
		if img.Dir != "" {
			root, err := os.OpenRoot(img.Dir)
			if err != nil {
				return nil, nil, &sandbox.Error{Op: "image " + img.Name, Err: err}
			}
			defer root.Close()
			s.image.root = root
		}
		t, err := s.run()
		if err == nil {
			t.Name = d.Name
			t.sign([]string{"image", img.ID})
		}
		return t, nil, err
	}
	if img.ID == "" {
		t, _, err := search()
		return t, err
	}
	return f.find(ctx, d, keyIn(d, img), f.store(f.environment(nil)), search)
}

// imageKey begins the key of what was found in an image: it has no stamps, because an image does not change.
const imageKey = "image-"

// keyIn names a search in an image. Another PATH is another search, and so is one by another version of this code.
func keyIn(d *Description, img Image) string {
	h := sha256.New()
	for _, word := range []string{"1", d.Name, d.Detail, img.ID, img.Path} {
		fmt.Fprintf(h, "%q\n", word)
	}
	return imageKey + hex.EncodeToString(h.Sum(nil)[:12])
}

// imageRoot is an image that is searched.
type imageRoot struct {
	Image
	root *os.Root // nil: only a backend can read it
}

// candidates are the paths at which a program is, along the image's PATH and then in the usual places. Where no file can be seen, they
// are its names.
func (i *imageRoot) candidates(d *Description) (found []string) {
	if i.root == nil {
		return d.Programs
	}
	add := func(p string) {
		if !slices.Contains(found, p) && i.isProgram(p) {
			found = append(found, p)
		}
	}
	for _, dir := range i.dirs() {
		for _, name := range d.Programs {
			if path.IsAbs(name) {
				add(path.Clean(name))
			} else {
				add(path.Join(dir, name))
			}
		}
	}
	for _, place := range d.Places {
		if !path.IsAbs(place) {
			continue // below a home directory, which is the sandbox's own
		}
		places := []string{place}
		if strings.Contains(place, "*") {
			places, _ = fs.Glob(i.root.FS(), place[1:]) // its only error is that of a bad pattern
			slices.SortFunc(places, func(a, b string) int { return compareVersions(b, a) })
			for n := range places {
				places[n] = "/" + places[n]
			}
		}
		for _, p := range places {
			add(p)
		}
	}
	return found
}

// dirs are those of the image's PATH that are the image's own.
func (i *imageRoot) dirs() (dirs []string) {
	for dir := range strings.SplitSeq(cmp.Or(i.Path, usualPath), ":") {
		if path.IsAbs(dir) && !withinAny(path.Clean(dir), ownDirs) {
			dirs = append(dirs, path.Clean(dir))
		}
	}
	return dirs
}

// named is the first program of one of the names; "" if there is none. Where no file can be seen, it is the first name that runs with
// the arguments.
func (i *imageRoot) named(s *Search, args []string, names ...string) string {
	for _, name := range names {
		if i.root == nil {
			if _, err := s.Query(name, args...); err == nil {
				return name
			}
			continue
		}
		dirs := i.dirs()
		if path.IsAbs(name) {
			dirs = []string{""}
		}
		for _, dir := range dirs {
			if p := path.Join(dir, name); i.isProgram(p) {
				return p
			}
		}
	}
	return ""
}

// errNoSandbox: a program could not be queried because there is no sandbox to run it in.
var errNoSandbox = errors.New("no sandbox to ask in")

// query runs a program of the image.
func (i *imageRoot) query(ctx context.Context, program string, args []string) (Answer, error) {
	answer, err := i.Query(ctx, append([]string{program}, args...)...)
	switch {
	case errors.Is(err, sandbox.ErrNotStarted):
		return answer, err
	case err != nil:
		return answer, fmt.Errorf("%w: %w", errNoSandbox, err)
	case answer.Exit != 0:
		return answer, answer.failure(program, args, fmt.Errorf("exit code %d", answer.Exit))
	}
	return answer, nil
}

// isProgram reports whether a path of the image is a program that a user could run.
func (i *imageRoot) isProgram(p string) bool {
	info, err := StatIn(i.root, p)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func (i *imageRoot) isDir(p string) bool {
	info, err := StatIn(i.root, p)
	return err == nil && info.IsDir()
}

// StatIn looks at what a path of an image leads to. It follows links as the kernel does for a process that has the image for its root:
// none leads out of it.
func StatIn(root *os.Root, p string) (fs.FileInfo, error) {
	done, rest, links := ".", strings.TrimPrefix(path.Clean(p), "/"), 0
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done) // of the root, itself
			continue
		}
		next := path.Join(done, name)
		info, err := root.Lstat(next)
		if err != nil {
			return nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return nil, fmt.Errorf("%s: too many links", p)
		}
		to, err := root.Readlink(next)
		if err != nil {
			return nil, err
		}
		if path.IsAbs(to) {
			done = "."
		}
		rest = to + "/" + rest
	}
	return root.Lstat(done)
}
