package cli

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// copyOut is one --out: which files are copied out, and into which directory of the host.
type copyOut struct {
	pattern string
	dir     string // empty is where we are; in JSON, the document alone
}

// readCopyOut reads pattern[:dir].
func readCopyOut(text string) (copyOut, error) {
	b := copyOut{pattern: text}
	if at := strings.LastIndexByte(text, ':'); at >= 0 {
		if b.pattern, b.dir = text[:at], text[at+1:]; b.dir == "" {
			return b, sandbox.Invalid("out", "%q names no directory after the colon", text)
		}
	}
	return b, executor.ValidateOutput(b.pattern)
}

// covers reports whether a pattern means a file; both are relative to /workspace, or absolute.
func (b copyOut) covers(name string) bool {
	split := func(p string) []string {
		if !path.IsAbs(p) {
			p = path.Join(sandbox.WorkspaceDir, p)
		}
		return strings.Split(path.Clean(p), "/")
	}
	return matchComponents(split(b.pattern), split(name))
}

// covers matches component by component: ** is any number of directories, and what matches a directory means all in it.
func matchComponents(pattern, name []string) bool {
	switch {
	case len(pattern) == 0:
		return true
	case pattern[0] == "**":
		for i := range name {
			if len(pattern) == 1 || matchComponents(pattern[1:], name[i:]) {
				return true
			}
		}
		return false
	case len(name) == 0:
		return false
	}
	ok, err := path.Match(pattern[0], name[0])
	return err == nil && ok && matchComponents(pattern[1:], name[1:])
}

// mentions reports whether the pattern itself speaks of that component.
func (b copyOut) namesComponent(component string) bool {
	return slices.Contains(strings.Split(b.pattern, "/"), component)
}

// outputFiles writes files to the host. Their names and contents are a stranger's.
type outputFiles struct {
	onlyNamed bool // no files into directories that --out does not name
	roots     map[string]*os.Root
	written   []string
	lost      []string
	failed    bool // the host, not the file, is to blame
}

// copyFilesOut brings files back, and remembers what became of each.
func (o *runOptions) copyFilesOut(files []executor.OutputFile, onlyNamed bool) *outputFiles {
	c := &outputFiles{onlyNamed: onlyNamed, roots: map[string]*os.Root{}}
	defer func() {
		for _, r := range c.roots {
			_ = r.Close()
		}
	}()
	met := make([]bool, len(o.copyOuts))
	for i := range files {
		f := &files[i]
		at := slices.IndexFunc(o.copyOuts, func(b copyOut) bool { return b.covers(f.Path) })
		if at >= 0 {
			met[at] = true
		}
		switch {
		case f.Reason != "":
			c.addLost(f.Path, f.Reason)
		case at >= 0 && o.overwritesProgram(o.copyOuts[at], f):
			c.addLost(f.Path, fmt.Sprintf("the program has changed its own file, and --out %s does not name it", o.copyOuts[at].pattern))
		case at >= 0:
			c.copyFile(o.copyOuts[at], f)
		}
	}
	for i, b := range o.copyOuts {
		// A file may be meant by several patterns, and goes to the first.
		if !met[i] && !slices.ContainsFunc(files, func(f executor.OutputFile) bool { return b.covers(f.Path) }) {
			c.addLost(b.pattern, "there is no such file")
		}
	}
	return c
}

// overwritesProgram reports whether a file is one of the program's, changed by the program: * does not mean that a stranger's code may
// take the place of what the user has read; a user who wants that names the file, or a directory it lies in.
func (o *runOptions) overwritesProgram(b copyOut, f *executor.OutputFile) bool {
	if o.program == nil || slices.ContainsFunc(strings.Split(f.Path, "/"), b.namesComponent) {
		return false
	}
	return slices.ContainsFunc(o.program.files, func(own executor.File) bool {
		return own.Path == f.Path && own.Open == nil && !bytes.Equal(own.Data, f.Data)
	})
}

func (c *outputFiles) addLost(name, reason string) {
	c.lost = append(c.lost, EscapeLine(name)+": "+reason)
}

func (c *outputFiles) copyFile(b copyOut, f *executor.OutputFile) {
	dir := b.dir
	if dir == "" {
		if c.onlyNamed {
			return
		}
		dir = "."
	}
	name := strings.TrimPrefix(f.Path, "/")
	for _, part := range strings.Split(name, "/") {
		// *.txt does not mean .git/hooks; such a file has to be named.
		if strings.HasPrefix(part, ".") && !b.namesComponent(part) {
			c.addLost(f.Path, fmt.Sprintf("%s is hidden, and --out %s does not name it", part, b.pattern))
			return
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		c.addLost(f.Path, "no file can be called that here")
		return
	}
	root, err := c.openRoot(dir)
	if err == nil {
		err = writeBeneath(root, name, f)
	}
	if err != nil {
		c.failed = true
		c.addLost(f.Path, plainPathError(err).Error())
		return
	}
	c.written = append(c.written, fmt.Sprintf("%s (%s)", EscapeLine(filepath.Join(dir, name)), sandbox.Size(len(f.Data))))
}

func (c *outputFiles) openRoot(dir string) (*os.Root, error) {
	if r := c.roots[dir]; r != nil {
		return r, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	r, err := os.OpenRoot(dir)
	if err == nil {
		c.roots[dir] = r
	}
	return r, err
}

// writeBeneath writes a file below a directory and nowhere else. It appears whole, in the place of a regular file or of none; a link
// that is put there meanwhile is replaced, not followed.
func writeBeneath(root *os.Root, name string, f *executor.OutputFile) (err error) {
	dir := path.Dir(name)
	if err := root.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if st, err := root.Lstat(name); err == nil && !st.Mode().IsRegular() {
		return errors.New("what has that name here is not a regular file")
	}
	part := path.Join(dir, ".sandbox-run-"+rand.Text())
	out, err := root.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(f.Mode).Perm()|0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(part) // what failed is worth more than what is left of it
		}
	}()
	_, err = out.Write(f.Data)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return root.Rename(part, name)
}
