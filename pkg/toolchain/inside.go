package toolchain

import (
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

// Image is a root in which toolchains are looked for instead of on this machine. Its programs are strangers': none of them
// runs but through Ask, which is to say in a sandbox.
type Image struct {
	// ID is the digest of what the image is: what was found in it once holds for good. Without one it is looked for each time.
	ID   string
	Name string // as people call it, for errors
	// Dir is where it lies unpacked. Empty is an image that only a backend can see: its programs are tried by name.
	Dir  string
	Path string // its PATH; empty is the usual one
	// Ask runs a program in a sandbox of the image. Its error is of kind sandbox.ErrNotStarted where there is no such program.
	Ask func(ctx context.Context, args ...string) (Answer, error)
}

// Answer is what a program of an image said.
type Answer struct {
	Stdout, Stderr string
	Exit           int
}

// usualPath is that of sandboxes, which an image without one has.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// FindIn finds one of the known toolchains in an image. It has no mounts: all of it is there already.
func (f *Finder) FindIn(ctx context.Context, name string, img Image) (*Toolchain, error) {
	l, ok := known(name)
	if !ok {
		return nil, sandbox.Invalid("toolchain", "%q is none of %s", name, strings.Join(Names(), ", "))
	}
	return f.findIn(ctx, l, "", img)
}

// CustomIn finds a toolchain that is described by its user. Paths of the host have no place in an image.
func (f *Finder) CustomIn(ctx context.Context, c Custom, img Image) (*Toolchain, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	l := language{name: c.Name, names: c.Programs[:1], inside: c.inside}
	return f.findIn(ctx, l, fmt.Sprintf("%q %q", c.Programs, c.VersionCommand), img)
}

func (f *Finder) findIn(ctx context.Context, l language, detail string, img Image) (*Toolchain, error) {
	key := keyIn(l.name, detail, img)
	release, err := f.alone(ctx, key)
	if err != nil {
		return nil, err
	}
	defer release()
	f.mu.Lock()
	held := f.known[key]
	f.mu.Unlock()
	store := f.store(f.environment())
	if held == nil && img.ID != "" {
		held = store.read(l.name, key)
	}
	if held != nil {
		f.remember(key, held)
		return held.Tool.clone(), nil
	}
	in := &inside{ctx: ctx, img: img}
	if img.Dir != "" {
		if in.root, err = os.OpenRoot(img.Dir); err != nil {
			return nil, &sandbox.Error{Op: "image " + img.Name, Err: err}
		}
		defer in.root.Close()
	}
	t, err := in.search(l)
	if err != nil {
		return nil, err
	}
	if img.ID != "" {
		r := &record{Name: l.name, Key: key, Tool: t}
		f.remember(key, r)
		store.write(r)
	}
	return t.clone(), nil
}

// imageKey begins the key of what was found in an image: it has no stamps, because nothing in there changes.
const imageKey = "image-"

// keyIn names a search in an image. Another PATH is another search, and so is one by another version of ours.
func keyIn(name, detail string, img Image) string {
	h := sha256.New()
	for _, word := range []string{"1", name, detail, img.ID, img.Path} {
		fmt.Fprintf(h, "%q\n", word)
	}
	return imageKey + hex.EncodeToString(h.Sum(nil)[:12])
}

// inside is one search in an image.
type inside struct {
	ctx     context.Context
	img     Image
	root    *os.Root // nil: only a backend can see it
	skipped []string
}

// search asks one candidate after the other until one is whole.
func (in *inside) search(l language) (*Toolchain, error) {
	var partial *incomplete
	for _, p := range in.candidates(l) {
		t, err := l.inside(in, p)
		if err == nil {
			t.Found, t.Skipped = p, in.skipped
			t.sign([]string{"image", in.img.ID})
			return t, nil
		}
		if err := in.ctx.Err(); err != nil {
			return nil, err
		}
		var lacks *incomplete
		switch {
		case errors.Is(err, errAsking): // it is not the program that failed
			return nil, err
		case errors.As(err, &lacks) && partial == nil:
			lacks.partial.Found = p
			partial = lacks
		case in.root != nil || !errors.Is(err, sandbox.ErrNotStarted): // by name alone nobody has seen it
			in.skipped = append(in.skipped, printable(fmt.Sprintf("%s: %v", p, err)))
		}
	}
	m := &Missing{Name: l.name, Where: "in the image " + in.img.Name, Tried: in.skipped}
	if partial != nil {
		m.Partial, m.Reason = partial.partial, partial.why
	}
	return nil, m
}

// candidates are the paths at which a language's program is, along the image's PATH and then in the usual places. Where nobody
// can look, they are its names.
func (in *inside) candidates(l language) (found []string) {
	if in.root == nil {
		return l.names
	}
	add := func(p string) {
		if !slices.Contains(found, p) && in.program(p) {
			found = append(found, p)
		}
	}
	for _, dir := range in.dirs() {
		for _, name := range l.names {
			if path.IsAbs(name) {
				add(path.Clean(name))
			} else {
				add(path.Join(dir, name))
			}
		}
	}
	for _, place := range l.places {
		if !path.IsAbs(place) {
			continue // a home's, which is the sandbox's own
		}
		places := []string{place}
		if strings.Contains(place, "*") {
			places, _ = fs.Glob(in.root.FS(), place[1:]) // its only error is that of a bad pattern
			slices.SortFunc(places, func(a, b string) int { return compareVersions(b, a) })
			for i := range places {
				places[i] = "/" + places[i]
			}
		}
		for _, p := range places {
			add(p)
		}
	}
	return found
}

// dirs are those of the image's PATH that are the image's own.
func (in *inside) dirs() (dirs []string) {
	list := in.img.Path
	if list == "" {
		list = usualPath
	}
	for _, dir := range strings.Split(list, ":") {
		if path.IsAbs(dir) && !withinAny(path.Clean(dir), ownDirs) {
			dirs = append(dirs, path.Clean(dir))
		}
	}
	return dirs
}

// named is the first program of one of the names. Where nobody can look it is the name itself, if there is such a program:
// that shows when it is asked.
func (in *inside) named(args []string, names ...string) string {
	for _, name := range names {
		if in.root == nil {
			if _, err := in.ask(append([]string{name}, args...)...); err == nil {
				return name
			}
			continue
		}
		if path.IsAbs(name) {
			if in.program(name) {
				return name
			}
			continue
		}
		for _, dir := range in.dirs() {
			if p := path.Join(dir, name); in.program(p) {
				return p
			}
		}
	}
	return ""
}

// errAsking: the question could not be put.
var errAsking = errors.New("no sandbox to ask in")

// ask runs a program of the image.
func (in *inside) ask(args ...string) (Answer, error) {
	said, err := in.img.Ask(in.ctx, args...)
	switch {
	case errors.Is(err, sandbox.ErrNotStarted):
		return said, err
	case err != nil:
		return said, fmt.Errorf("%w: %w", errAsking, err)
	case said.Exit != 0:
		if line := firstLine(said.Stderr, said.Stdout); line != "" {
			return said, fmt.Errorf("%s: exit code %d: %s", commandLine(args[0], args[1:]), said.Exit, line)
		}
		return said, fmt.Errorf("%s: exit code %d", commandLine(args[0], args[1:]), said.Exit)
	}
	return said, nil
}

// program reports whether a path of the image is a program that its user could run.
func (in *inside) program(p string) bool {
	info, err := in.stat(p)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func (in *inside) isDir(p string) bool {
	info, err := in.stat(p)
	return err == nil && info.IsDir()
}

func (in *inside) stat(p string) (fs.FileInfo, error) { return StatIn(in.root, p) }

// StatIn looks at what a path of an image leads to. It follows links as the kernel does for whoever has the image for its root: none
// leads out of it.
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
