package verify

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// maxDocuments bounds the Markdown files of a directory.
const maxDocuments = 2000

// OpenDocuments reads a Markdown file, or all below a directory: those with the extension .md or .markdown. It follows no links, and leaves
// out hidden directories and installed packages. The caller closes the files.
func OpenDocuments(name string) (files []*HostFile, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	st, err := os.Stat(name)
	if err != nil || !st.IsDir() {
		f, err := OpenFile(name, MaxDocument, false)
		if err != nil {
			return nil, err
		}
		return []*HostFile{f}, nil
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch base := path.Base(p); {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(base, ".") || slices.Contains([]string{"node_modules", "vendor"}, base)):
			return fs.SkipDir
		case !d.Type().IsRegular() || !slices.Contains([]string{".md", ".markdown"}, strings.ToLower(path.Ext(base))):
			return nil
		case len(files) == maxDocuments:
			return sandbox.Invalid("verify", "%s has more than %d documents", name, maxDocuments)
		}
		f, err := OpenFile(filepath.Join(name, p), MaxDocument, false)
		if err == nil {
			files = append(files, f)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = &sandbox.Error{Op: "read " + name, Kind: sandbox.ErrInvalid, Err: errors.New("there is no Markdown file in it"),
			Hint: "the name of a file"}
	}
	return files, err
}

// Sources are the documents of files.
func Sources(files []*HostFile) (list []Source) {
	for _, f := range files {
		list = append(list, Source{f.Name, string(f.Content)})
	}
	return list
}

// Write writes updates into the files that they are of, and marks their checks. Files that have changed meanwhile stay as they are.
func (r *Report) Write(files []*HostFile, updates []Update) error {
	for _, u := range updates {
		i := slices.IndexFunc(files, func(f *HostFile) bool { return f.Name == u.Path })
		if err := files[i].Replace([]byte(u.Text)); err != nil {
			return err
		}
		r.Accept(u)
	}
	return nil
}
