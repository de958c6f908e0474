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
	dir     string // empty: the current directory or, with JSON, only the document
}

// readCopyOut parses pattern[:dir].
func readCopyOut(text string) (copyOut, error) {
	b := copyOut{pattern: text}
	if at := strings.LastIndexByte(text, ':'); at >= 0 {
		if b.pattern, b.dir = text[:at], text[at+1:]; b.dir == "" {
			return b, sandbox.Invalid("out", "%q names no directory after the colon", text)
		}
	}
	return b, executor.ValidateOutput(b.pattern)
}

// covers reports whether the pattern matches a file or a directory that contains it. Both paths are absolute or relative to /workspace.
func (b copyOut) covers(name string) bool {
	split := func(p string) []string {
		if !path.IsAbs(p) {
			p = path.Join(sandbox.WorkspaceDir, p)
		}
		return strings.Split(path.Clean(p), "/")
	}
	return matchComponents(split(b.pattern), split(name))
}

// matchComponents matches component by component: ** is any number of directories, and a pattern that matches a directory matches
// everything in it.
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

// namesComponent reports whether the component stands in the pattern literally.
func (b copyOut) namesComponent(component string) bool {
	return slices.Contains(strings.Split(b.pattern, "/"), component)
}

// outputFiles copies files to the host. Their names and contents are untrusted.
type outputFiles struct {
	onlyNamed bool // copy only files whose --out names a directory
	roots     map[string]*os.Root
	written   []string
	lost      []string // files that were not copied, with the reason
	failed    bool     // the host caused a failure, not the file
}

// copyFilesOut copies output files to the host. The result lists the files that were written and those that were not.
func (o *runOptions) copyFilesOut(files []executor.OutputFile, onlyNamed bool) *outputFiles {
	c := &outputFiles{onlyNamed: onlyNamed, roots: map[string]*os.Root{}}
	defer func() {
		for _, r := range c.roots {
			_ = r.Close()
		}
	}()
	matched := make([]bool, len(o.copyOuts))
	for i := range files {
		f := &files[i]
		at := slices.IndexFunc(o.copyOuts, func(b copyOut) bool { return b.covers(f.Path) })
		if at >= 0 {
			matched[at] = true
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
		// Several patterns may match a file; it is copied to the directory of the first.
		if !matched[i] && !slices.ContainsFunc(files, func(f executor.OutputFile) bool { return b.covers(f.Path) }) {
			c.addLost(b.pattern, "there is no such file")
		}
	}
	return c
}

// overwritesProgram reports whether a file is one of the program's own, changed by the program, and the pattern does not name it. A * must
// not replace code that the user has read with untrusted code. To allow that, the user names the file or a directory that contains it.
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
		// A wildcard does not match hidden files such as .git/hooks: the pattern has to name them.
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

// writeBeneath writes a file below the root and nowhere else. The file appears with its whole content. It replaces only a regular file,
// or a link that appears meanwhile; links are not followed.
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
			_ = root.Remove(part) // the first error is reported
		}
	}()
	_, err = out.Write(f.Data)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return root.Rename(part, name)
}
