package executor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Added are packages that were installed for a session that runs.
type Added struct {
	Dir  string // in the sandbox, from which a driver can import them
	Deps *Deps
}

// Install installs packages beside those of the session, and copies them into its sandbox: a sandbox gets no further mounts. They do not
// change what is there. An *InstallFailure has the result of an installation that failed.
func (s *Session) Install(ctx context.Context, packages []string) (*Added, error) {
	lang := s.Language()
	if lang.Imports == "" || s.composer != nil {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "deps", "name the packages when the session is created",
			"a session of %s takes no packages later", lang.Title)
	}
	if len(packages) == 0 {
		return nil, sandbox.Invalid("deps", "no packages are named")
	}
	own := s.request()
	own.Files, own.Inputs, own.Code, own.OnEvent = nil, nil, "", nil
	own.Options = LanguageOptions{Deps: packages}
	plan, release, err := s.e.plan(ctx, &own)
	if err != nil {
		return nil, err
	}
	defer release()
	x := &execution{e: s.e, req: &own, plan: plan}
	x.out = Result{Language: plan.Language, Version: plan.Version}
	release, ok, err := x.havePackages(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &InstallFailure{&x.out}
	}
	defer release()
	if x.plan.layer == nil {
		return nil, sandbox.Invalid("deps", "no packages are named")
	}
	s.mu.Lock()
	s.added++
	dir := path.Join(sandbox.HomeDir, ".sandbox-run", fmt.Sprintf("packages-%d", s.added))
	s.mu.Unlock()
	if err := s.copyIn(ctx, filepath.Join(x.plan.layer.Dir, lang.Imports), dir); err != nil {
		return nil, err
	}
	return &Added{dir, x.out.Deps}, nil
}

// copyIn copies a directory of this machine into the sandbox, with its links.
func (s *Session) copyIn(ctx context.Context, from, to string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	var files []sandbox.File
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f := sandbox.File{Path: path.Join(to, name)}
		switch info, err := d.Info(); {
		case err != nil:
			return err
		case d.Type() == fs.ModeSymlink:
			if f.Link, err = root.Readlink(name); err != nil {
				return err
			}
		case d.Type().IsRegular():
			f.Mode = info.Mode().Perm()
			f.Open = func() (io.ReadCloser, error) { return root.Open(name) }
		default:
			return nil // an image has no other files
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the packages: %w", err)
	}
	return s.e.manager.Put(ctx, s.x.id, files)
}
