package language

import (
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// File is one file of a program.
type File struct {
	Path string
	Mode fs.FileMode // permission bits; 0: 0644
	Data []byte
	Open func() (io.ReadCloser, error) // if Data is nil
	Link string                        // target of a symbolic link, in place of content; relative, and inside the tree
}

// Put returns the file for a sandbox, at a path there.
func (f File) Put(at string) sandbox.File {
	return sandbox.File{Path: at, Mode: f.Mode, Data: f.Data, Open: f.Open, Link: f.Link}
}

// Content returns the whole file.
func (f File) Content() ([]byte, error) { return f.Head(math.MaxInt64) }

// Head returns at most that many bytes of the beginning.
func (f File) Head(most int64) ([]byte, error) {
	if f.Open == nil {
		return f.Data[:min(int64(len(f.Data)), most)], nil
	}
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most))
}

// MaxFiles bounds a tree; the limits of the disk bound it further.
const MaxFiles = 100_000

// CheckNames refuses names that can lead to another place in the sandbox. field is the name of the list in errors.
func CheckNames(field string, files []File) error {
	if len(files) > MaxFiles {
		return sandbox.Invalid(field, "%d files; the most is %d", len(files), MaxFiles)
	}
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		if err := CheckName(field, f.Path); err != nil {
			return err
		}
		if seen[f.Path] {
			return sandbox.Invalid(field, "two files are called %q", f.Path)
		}
		seen[f.Path] = true
		if f.Link != "" && (path.IsAbs(f.Link) || !fs.ValidPath(path.Join(path.Dir(f.Path), f.Link))) {
			return sandbox.Invalid(field, "the link %q leads to %.80q, which is not in the directory", f.Path, f.Link)
		}
	}
	// A file can not also be a directory of another file.
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return sandbox.Invalid(field, "%q is a file, and a directory of %q", dir, f.Path)
			}
		}
	}
	return nil
}

// CheckName refuses a name that can lead to another place in the sandbox.
func CheckName(field, p string) error {
	switch {
	case p == "":
		return sandbox.Invalid(field, "a file has no name")
	case strings.ContainsRune(p, 0):
		return sandbox.Invalid(field, "name %q contains a NUL byte", p)
	case len(p) > 3800: // with the directory above it, the kernel's limit of a path
		return sandbox.Invalid(field, "name %.40q… is %d bytes long; the most is 3800", p, len(p))
	case !utf8.ValidString(p):
		return sandbox.Invalid(field, "name %q is not UTF-8; rename the file", p)
	case path.IsAbs(p), !fs.ValidPath(p), p == ".":
		return sandbox.Invalid(field, "name %q is not relative and in its shortest form, without . and ..; write it like src/main.py", p)
	}
	for _, part := range strings.Split(p, "/") {
		if len(part) > 255 {
			return sandbox.Invalid(field, "name %.40q… has a part of %d bytes; the most is 255", p, len(part))
		}
	}
	return nil
}

// maxShebang is the part of a first line that the kernel reads.
const maxShebang = 256

// Interpreter returns the interpreter in the file's first line: python3 for #!/usr/bin/env -S python3 -u; "" without a shebang.
func (f File) Interpreter() string {
	data, err := f.Head(maxShebang)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return ""
	}
	for i, word := range strings.Fields(rest) {
		name := path.Base(word)
		if i == 0 && name != "env" {
			return name
		}
		if i == 0 || strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		return name
	}
	return ""
}

// Find returns the file of that path, or nil.
func Find(files []File, p string) *File {
	i := slices.IndexFunc(files, func(f File) bool { return f.Path == p })
	if i < 0 {
		return nil
	}
	return &files[i]
}

// FirstFile returns the path of the first of some files that a directory has, or "".
func FirstFile(files []File, dir string, names []string) string {
	for _, n := range names {
		if p := path.Join(dir, n); Find(files, p) != nil {
			return p
		}
	}
	return ""
}

// HasDirectory reports whether a directory has files.
func HasDirectory(files []File, dir string) bool {
	return slices.ContainsFunc(files, func(f File) bool { return strings.HasPrefix(f.Path, dir+"/") })
}

// IsBelow reports whether a path is a directory or lies below it; all paths lie below ".".
func IsBelow(p, dir string) bool { return dir == "." || p == dir || strings.HasPrefix(p, dir+"/") }

// TOMLString returns the content of a plain string in a line of TOML, or "".
func TOMLString(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return ""
	}
	inner, _, ok := strings.Cut(s[1:], s[:1])
	if !ok || strings.Contains(inner, `\`) {
		return ""
	}
	return inner
}
