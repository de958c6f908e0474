// Package hostimage makes images of this machine's own files, where a real image would be too large or is not available.
//
// What. An archive of programs with all their libraries, of trees and of small files, imported into a store as an image.
//
// Place in the flow. Tests and benchmarks use it; no executable of ours does.
//
// Lifecycle. Add leaves an image in the given store, and nothing else.
//
// Concurrency. Nothing here has state.
//
// Limits. Files that a program opens only while it runs have to be named. Owners are root, times are the epoch.
package hostimage

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Contents are the files and the configuration of an image.
type Contents struct {
	Programs []string          // with the links to them, the loader and the libraries
	Trees    []string          // directories, whole
	Skip     func(string) bool // of trees; nil leaves nothing out
	Files    map[string]string // by their paths in the image; a text "-> target" makes a symbolic link
	Config   image.Config
	// Architecture is the image's architecture; empty is this machine's.
	Architecture string
}

// Add puts an image into a store under a name and returns it.
func Add(ctx context.Context, store *image.Store, name string, c Contents) (_ *image.Image, err error) {
	layer, err := os.CreateTemp("", "hostimage-*.tar")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, layer.Close(), os.Remove(layer.Name())) }()
	if err := c.write(layer); err != nil {
		return nil, err
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": cmp.Or(c.Architecture, runtime.GOARCH), "os": "linux",
		"config": map[string]any{
			"Env": c.Config.Env, "WorkingDir": c.Config.Workdir, "User": c.Config.User, "Entrypoint": c.Config.Entrypoint, "Cmd": c.Config.Cmd,
		},
	})
	if err != nil {
		return nil, err
	}
	return store.Add(ctx, image.Source{Names: []string{name}, Config: config, Layers: []image.Layer{{
		Open: func(_ context.Context, offset int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(layer, offset, size-offset)), nil
		},
	}}})
}

// write makes the archive.
func (c *Contents) write(w io.Writer) error {
	a := &archive{tar: tar.NewWriter(w), seen: map[string]bool{"/": true}}
	if len(c.Programs) > 0 {
		paths, err := toolchain.Closure(c.Programs)
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := a.host(p); err != nil {
				return err
			}
		}
	}
	for _, tree := range c.Trees {
		err := filepath.WalkDir(tree, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if c.Skip != nil && c.Skip(p) {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			return a.host(p)
		})
		if err != nil {
			return err
		}
	}
	names := make([]string, 0, len(c.Files))
	for name := range c.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := a.made(path.Join("/", name), c.Files[name]); err != nil {
			return err
		}
	}
	return a.tar.Close()
}

// archive is an archive that is being written.
type archive struct {
	tar  *tar.Writer
	seen map[string]bool
}

// parents adds the directories of a path. A directory that is a link on this machine becomes the same link.
func (a *archive) parents(p string) error {
	dir := path.Dir(p)
	if a.seen[dir] {
		return nil
	}
	if st, err := os.Lstat(dir); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return a.host(dir)
	}
	if err := a.parents(dir); err != nil {
		return err
	}
	a.seen[dir] = true
	return a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755})
}

// host adds one entry of this machine.
func (a *archive) host(p string) error {
	if a.seen[p] {
		return nil
	}
	st, err := os.Lstat(p)
	if err != nil {
		return err
	}
	if err := a.parents(p); err != nil || a.seen[p] {
		return err
	}
	a.seen[p] = true
	h := &tar.Header{Name: p[1:], Mode: int64(st.Mode().Perm())}
	switch {
	case st.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case st.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(p); err != nil {
			return err
		}
	case st.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, st.Size()
	default:
		return nil
	}
	if err := a.tar.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(a.tar, f, h.Size)
	return err
}

// made adds a generated file or link. Scripts are executable.
func (a *archive) made(p, content string) error {
	if err := a.parents(p); err != nil {
		return err
	}
	if target, ok := strings.CutPrefix(content, "-> "); ok {
		return a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: p[1:], Linkname: target, Mode: 0o777})
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: p[1:], Size: int64(len(content)), Mode: 0o644}
	if strings.HasPrefix(content, "#!") {
		h.Mode = 0o755
	}
	if err := a.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.WriteString(a.tar, content)
	return err
}

// Python is this machine's Python, without the parts that small programs do not need; nil where it is not installed.
func Python() *Contents {
	const program = "/usr/bin/python3"
	real, err := toolchain.Real(program)
	if err != nil {
		return nil
	}
	library := "/usr/lib/" + path.Base(real)
	if _, err := os.Stat(library); err != nil {
		return nil
	}
	return &Contents{
		Programs: []string{program, real}, Trees: []string{library},
		Skip: func(p string) bool {
			switch name := path.Base(p); name {
			case "test", "tests", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "__pycache__",
				"tkinter", "distutils", "dist-packages", "site-packages":
				return true
			default:
				return strings.HasPrefix(name, "config-3")
			}
		},
	}
}
