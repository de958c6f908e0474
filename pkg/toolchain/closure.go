package toolchain

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// usualLibraries are the directories that every loader searches without configuration.
var usualLibraries = []string{"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"}

// Closure lists the paths of the host that a root must have so that exactly these programs run in it, under these names: the links to
// them, their files, the loader and the libraries they are linked with, and the interpreter of a script. A path is a link or contains
// none. Files that a program opens at run time (data, plug-ins) are not listed.
func Closure(programs []string) ([]string, error) {
	c := closure{paths: map[string]bool{}}
	for _, p := range programs {
		r, err := program(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		c.add(r)
		if err := c.addNeeded(r, nil, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
	}
	// Without ld.so.cache a loader searches its usual directories only.
	if r, err := resolve("/etc/ld.so.cache"); err == nil && r.info.Mode().IsRegular() {
		c.add(r)
	}
	return slices.Sorted(maps.Keys(c.paths)), nil
}

// closure collects the paths of a Closure.
type closure struct {
	paths      map[string]bool
	configured []string
}

// add adds a file and the links to it, and reports whether the file is new.
func (c *closure) add(r Program) bool {
	for _, l := range r.links {
		c.paths[l] = true
	}
	known := c.paths[r.real]
	c.paths[r.real] = true
	return !known
}

const maxInterpreters = 4 // the kernel's bound on scripts that are interpreters of scripts

// addNeeded adds the interpreter, or the loader and libraries, of a file.
func (c *closure) addNeeded(r Program, search []string, depth int) error {
	if interpreter, ok := scriptOf(r.real); ok {
		if depth++; depth > maxInterpreters {
			return fmt.Errorf("its interpreters have interpreters")
		}
		by, err := program(interpreter)
		if err != nil {
			return fmt.Errorf("a script of %s: %w", interpreter, err)
		}
		c.add(by)
		return c.addNeeded(by, nil, depth)
	}
	l, err := linkageOf(r.real)
	if err != nil {
		return err
	}
	if filepath.IsAbs(l.interpreter) {
		loader, err := resolve(l.interpreter)
		if err != nil {
			return err
		}
		c.add(loader)
	}
	own := slices.Concat(l.searched(r.real), search)
	for _, name := range l.needed {
		if err := c.library(name, own, depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *closure) library(name string, search []string, depth int) error {
	if c.configured == nil {
		c.configured = slices.Concat(loaderDirs("/etc/ld.so.conf", 0), usualLibraries)
	}
	places := slices.Concat(search, c.configured)
	if strings.ContainsRune(name, '/') {
		places = []string{""}
	}
	for _, dir := range places {
		r, err := resolve(filepath.Join(dir, name))
		if err != nil {
			continue // the loader reports a missing library, and some libraries have no file
		}
		if c.add(r) {
			return c.addNeeded(r, search, depth)
		}
		break
	}
	return nil
}

// searched returns the directories that a file names for its loader.
func (l linkage) searched(file string) (dirs []string) {
	for _, dir := range l.search {
		for _, origin := range []string{"$ORIGIN", "${ORIGIN}"} {
			dir = strings.ReplaceAll(dir, origin, filepath.Dir(file))
		}
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir) // its ".." may follow a link: not to be shortened
		}
	}
	return dirs
}

// scriptOf returns the interpreter in a script's first line.
func scriptOf(p string) (interpreter string, ok bool) {
	f, err := os.Open(p)
	if err != nil {
		return "", false
	}
	defer f.Close()
	line, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil || !bytes.HasPrefix(line, []byte("#!")) {
		return "", false
	}
	line, _, _ = bytes.Cut(line[2:], []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return "", false
	}
	return words[0], true
}

// Real returns the file to which a path leads.
func Real(p string) (string, error) {
	r, err := resolve(p)
	return r.real, err
}
