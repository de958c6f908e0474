package toolchain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Program is a program's path and the file to which its links lead.
type Program struct {
	real string
	// via are all names of the file: the given path, then the path after each replaced link. Programs may use any of them.
	via []string
	// links are the paths of the links.
	links []string
	info  fs.FileInfo
	// doubt names another user who could change the file; nil without one.
	doubt error
}

// Name returns the path as found: a link, a shim or the file itself.
func (r *Program) Name() string { return r.via[0] }

// Real returns the path without links.
func (r *Program) Real() string { return r.real }

// Inside returns the program's path in a sandbox: the path as found if sandboxes show it, otherwise that of its file.
func (r *Program) Inside() string {
	if Shown(r.via[0]) && Shown(r.real) {
		return r.via[0]
	}
	return r.real
}

const maxLinks = 40

// resolve follows the links of an absolute path one by one, and checks which users can write to the directories that it passes. As in the
// kernel, ".." is the parent of the directory to which a link leads. The mount helper opens the result without following links (D5), so
// it refuses a path that changes afterwards.
func resolve(p string) (Program, error) {
	r := Program{via: []string{filepath.Clean(p)}}
	if !filepath.IsAbs(p) {
		return r, fmt.Errorf("%s is not an absolute path", p)
	}
	const slash = string(filepath.Separator)
	done, rest := rootOf(p), p[len(rootOf(p)):]
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, slash)
		switch name {
		case "", ".":
			continue
		case "..":
			done = filepath.Dir(done)
			continue
		}
		next := filepath.Join(done, name)
		info, err := os.Lstat(next)
		if err != nil {
			return r, err
		}
		if r.doubt == nil {
			r.doubt = doubtful(next, info, rest != "" || info.IsDir())
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if rest != "" && !info.IsDir() {
				return r, &fs.PathError{Op: "resolve", Path: next, Err: errNotDirectory}
			}
			done = next
			continue
		}
		if r.links = append(r.links, next); len(r.links) > maxLinks {
			return r, fmt.Errorf("%s: too many links", p)
		}
		to, err := os.Readlink(next)
		if err != nil {
			return r, err
		}
		if filepath.IsAbs(to) {
			done, to = rootOf(to), to[len(rootOf(to)):]
		}
		rest = to + slash + rest
		r.via = append(r.via, filepath.Join(done, rest))
	}
	info, err := os.Lstat(done)
	if err != nil {
		return r, err
	}
	r.real, r.info = done, info
	return r, nil
}

func rootOf(p string) string { return filepath.VolumeName(p) + string(filepath.Separator) }

// within reports whether p is dir or lies below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func withinAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return within(p, d) })
}

// program resolves the path of an executable file. Its doubt is set if users other than the caller and root can change the file.
func program(p string) (Program, error) {
	r, err := resolve(p)
	switch {
	case err != nil:
		return r, err
	case !r.info.Mode().IsRegular():
		return r, errNotProgram
	case !executable(r.real, r.info):
		return r, fmt.Errorf("%w: mode %04o", errNotProgram, r.info.Mode().Perm())
	}
	return r, r.doubt
}

var (
	errNotProgram   = errors.New("not an executable file")
	errNotDirectory = errors.New("not a directory")
)
