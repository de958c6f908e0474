package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// What a directory may hold to be taken for a program.
const (
	maxTreeFiles = 50_000
	maxTreeBytes = 256 * sandbox.MiB
)

// tree reads a directory without ever leaving it: a link that stays inside is read as what it leads to, any other is an
// error that names it.
type tree struct {
	root  *os.Root
	name  string // of the directory, for messages
	files []executor.File
	bytes sandbox.Size
	above []fs.FileInfo // the directories we are in
	// lazy: contents are read when they are put into the sandbox, and the directory stays open until then.
	lazy bool
}

// readTree reads a program. It is in memory then: what is compiled is what was looked at.
func readTree(dir string) ([]executor.File, error) {
	t := &tree{name: dir}
	if err := t.read(dir); err != nil {
		return nil, err
	}
	defer t.root.Close()
	if len(t.files) == 0 {
		return nil, t.wrong(".", errors.New("there are no files in it"))
	}
	return t.files, nil
}

func (t *tree) read(dir string) (err error) {
	if t.root, err = os.OpenRoot(dir); err != nil {
		return unreadable(dir, err)
	}
	if err := t.directory("."); err != nil {
		_ = t.root.Close()
		return err
	}
	return nil
}

// skipped are what version control keeps for itself.
func skipped(name string) bool { return name == ".git" || name == ".hg" || name == ".svn" }

func (t *tree) directory(rel string) error {
	d, err := t.root.Open(rel)
	if err != nil {
		return t.wrong(rel, err)
	}
	defer d.Close()
	self, err := d.Stat()
	if err != nil {
		return t.wrong(rel, err)
	}
	if slices.ContainsFunc(t.above, func(above fs.FileInfo) bool { return os.SameFile(above, self) }) {
		return t.wrong(rel, errors.New("the link leads to a directory that it lies in"))
	}
	t.above = append(t.above, self)
	defer func() { t.above = t.above[:len(t.above)-1] }()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return t.wrong(rel, err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if skipped(e.Name()) {
			continue
		}
		if err := t.entry(path.Join(rel, e.Name()), e.Type()); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) entry(rel string, kind fs.FileMode) error {
	if kind&fs.ModeSymlink != 0 {
		st, err := t.root.Stat(rel)
		if err != nil {
			return t.wrong(rel, fmt.Errorf("the link does not lead to anything in the directory (%w)", plainPathError(err)))
		}
		kind = st.Mode().Type()
	}
	switch {
	case kind.IsDir():
		return t.directory(rel)
	case kind.IsRegular():
		return t.file(rel)
	}
	return t.wrong(rel, errors.New("it is neither a file nor a directory"))
}

func (t *tree) file(rel string) error {
	if len(t.files) == maxTreeFiles {
		return t.tooLarge(fmt.Sprintf("more than %d files", maxTreeFiles))
	}
	f, err := t.open(rel)
	if err != nil {
		return t.wrong(rel, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return t.wrong(rel, err)
	}
	if !st.Mode().IsRegular() {
		return t.wrong(rel, errors.New("it is no regular file any more"))
	}
	file := executor.File{Path: rel, Mode: st.Mode().Perm()}
	if t.lazy {
		file.Open = func() (io.ReadCloser, error) { return t.open(rel) }
	} else {
		if t.bytes += sandbox.Size(st.Size()); t.bytes > maxTreeBytes {
			return t.tooLarge("more than " + maxTreeBytes.String())
		}
		// It may grow while we read; no further than was counted.
		if file.Data, err = io.ReadAll(io.LimitReader(f, st.Size())); err != nil {
			return t.wrong(rel, err)
		}
	}
	t.files = append(t.files, file)
	return nil
}

// open never waits for the other end of a pipe that somebody puts in a file's place.
func (t *tree) open(rel string) (*os.File, error) {
	return t.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

func (t *tree) tooLarge(what string) error {
	return &sandbox.Error{
		Op: "read " + t.name, Kind: sandbox.ErrInvalid, Err: fmt.Errorf("it holds %s", what),
		Hint: "the directory of the program alone; --volume shows the rest",
	}
}

func (t *tree) wrong(rel string, err error) error {
	return &sandbox.Error{Op: "read " + filepath.Join(t.name, rel), Kind: sandbox.ErrInvalid, Err: plainPathError(err)}
}

// plainPathError leaves out the path, where we say it better.
func plainPathError(err error) error {
	for {
		var e *fs.PathError
		if !errors.As(err, &e) {
			return err
		}
		err = e.Err
	}
}

// readInput reads host[:dest]: files that the program finds in /workspace.
func readInput(text string) ([]executor.File, error) {
	host, dest := splitPair(text)
	if host == "" {
		return nil, sandbox.Invalid("in", "%q names no file; write it like data.csv or data.csv:input/data.csv", text)
	}
	if dest == "" {
		dest = filepath.Base(absoluteName(host))
	}
	if inside, ok := strings.CutPrefix(path.Clean(dest), sandbox.WorkspaceDir+"/"); ok {
		dest = inside
	}
	if dest = path.Clean(dest); dest == sandbox.WorkspaceDir {
		dest = "."
	}
	st, err := os.Stat(host)
	if err != nil {
		return nil, sandbox.Invalid("in", "%s: %w", host, plainPathError(err))
	}
	if !st.IsDir() {
		if !st.Mode().IsRegular() {
			return nil, sandbox.Invalid("in", "%s is neither a file nor a directory", host)
		}
		if strings.HasSuffix(text, "/") || dest == "." {
			dest = path.Join(dest, filepath.Base(host))
		}
		return []executor.File{{Path: dest, Mode: st.Mode().Perm(), Open: func() (io.ReadCloser, error) {
			return os.OpenFile(host, os.O_RDONLY|syscall.O_NONBLOCK, 0) // whatever has taken its place meanwhile
		}}}, nil
	}
	t := &tree{name: host, lazy: true}
	if err := t.read(host); err != nil {
		return nil, err
	}
	for i := range t.files {
		t.files[i].Path = path.Join(dest, t.files[i].Path)
	}
	return t.files, nil
}

// readSetup reads a file that lies in the working directory under its own name.
func readSetup(name string) (executor.File, error) {
	files, err := readInput(name + ":" + filepath.Base(name))
	if err != nil || len(files) != 1 {
		return executor.File{}, sandbox.Invalid("setup", "%q is not a file that can be read", name)
	}
	return files[0], nil
}

// splitPair splits host:inside at its last colon, unless the whole is the name of something.
func splitPair(text string) (first, second string) {
	if exists(text) {
		return text, ""
	}
	if at := strings.LastIndexByte(text, ':'); at >= 0 {
		return text[:at], text[at+1:]
	}
	return text, ""
}
