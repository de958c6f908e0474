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

// Image is a root to search for toolchains. Its programs are untrusted: they run through Query only, in a sandbox. Their answers affect
// sandboxes of that image only.
type Image struct {
	// ID is the digest of the image; a toolchain that was found under it stays valid. Without ID the image is searched each time.
	ID   string
	Name string // for errors
	// Dir is the unpacked image. Empty is an image that only a backend can read: the search tries its programs by name.
	Dir  string
	Path string // its PATH; empty is usualPath
	// Query runs a program in a sandbox of the image. Its error is of kind sandbox.ErrNotStarted if the program does not exist.
	Query func(ctx context.Context, args ...string) (Answer, error)
}

// usualPath is the PATH of sandboxes, which an image without a PATH has.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// FindIn finds a toolchain in an image. The toolchain has no mounts, because the image contains all of it.
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

// imageKey is the prefix of keys of searches in images. Their records have no stamps, because an image does not change.
const imageKey = "image-"

// keyIn returns the key of a search in an image. It depends on the image's PATH and on the version of this code.
func keyIn(d *Description, img Image) string {
	h := sha256.New()
	for _, word := range []string{"1", d.Name, d.Detail, img.ID, img.Path} {
		fmt.Fprintf(h, "%q\n", word)
	}
	return imageKey + hex.EncodeToString(h.Sum(nil)[:12])
}

// imageRoot is the image of a search.
type imageRoot struct {
	Image
	root *os.Root // nil: only a backend can read it
}

// candidates returns the paths of programs along the image's PATH and then in the usual places. If the search can not read files, they
// are the program's names.
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
			continue // below a home directory, which the sandbox replaces
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

// dirs returns the directories of the image's PATH that the sandbox does not replace.
func (i *imageRoot) dirs() (dirs []string) {
	for dir := range strings.SplitSeq(cmp.Or(i.Path, usualPath), ":") {
		if path.IsAbs(dir) && !withinAny(path.Clean(dir), ownDirs) {
			dirs = append(dirs, path.Clean(dir))
		}
	}
	return dirs
}

// named returns the first program with one of the names, or "". If the search can not read files, it returns the first name that runs
// with the arguments.
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

// errNoSandbox means that a program could not be queried because there is no sandbox to run it in.
var errNoSandbox = errors.New("no sandbox to run the query in")

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

// StatIn returns the file to which a path of an image leads. It follows links as the kernel does for a process whose root is the image:
// no link leads out of it.
func StatIn(root *os.Root, p string) (fs.FileInfo, error) {
	done, rest, links := ".", strings.TrimPrefix(path.Clean(p), "/"), 0
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done) // the parent of the root is the root
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
