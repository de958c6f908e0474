package toolchain

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Custom is a toolchain that a languages.yaml describes.
type Custom struct {
	Name string
	// Programs are names on PATH or absolute paths. The first is the main one; all must exist.
	Programs []string
	// VersionCommand prints the version; its first word may name one of the programs. Empty: no version.
	VersionCommand []string
	// Paths are further files and directories of the host that the language needs; ~ is the home directory.
	Paths []string
}

// Description returns how to find the toolchain. Its error is of kind sandbox.ErrInvalid.
func (c *Custom) Description() (*Description, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	d := &Description{Name: c.Name, Programs: c.Programs[:1], Query: c.query}
	d.Detail = fmt.Sprintf("%q %q %q", c.Programs, c.VersionCommand, c.Paths)
	if main := c.Programs[0]; filepath.IsAbs(main) {
		d.Places = []string{main}
	} else {
		for _, dir := range []string{"/usr/local/bin/", "/usr/bin/", "/bin/"} {
			d.Places = append(d.Places, dir+main)
		}
	}
	return d, nil
}

func (c *Custom) validate() error {
	field := "language " + c.Name
	if c.Name == "" || len(c.Name) > 32 || strings.Trim(c.Name, "abcdefghijklmnopqrstuvwxyz0123456789+#_-") != "" {
		return sandbox.Invalid("language", "%q is not a name of at most 32 lower-case letters, digits, +, #, - and _", c.Name)
	}
	if len(c.Programs) == 0 {
		return sandbox.Invalid(field, "it names no program")
	}
	for _, p := range slices.Concat(c.Programs, c.VersionCommand) {
		if p == "" || strings.ContainsRune(p, 0) {
			return sandbox.Invalid(field, "%q is not a program or an argument", p)
		}
	}
	for _, p := range c.Programs {
		if strings.ContainsAny(p, "*?[") || strings.ContainsRune(p, '/') && !filepath.IsAbs(p) {
			return sandbox.Invalid(field, "program %q is neither a name nor an absolute path", p)
		}
	}
	for _, p := range c.Paths {
		if !filepath.IsAbs(p) && !strings.HasPrefix(p, "~/") {
			return sandbox.Invalid(field, "path %q is not absolute", p)
		}
	}
	return nil
}

func (c *Custom) query(s *Search, found Program) (*Toolchain, error) {
	t := &Toolchain{Path: found.Inside(), Home: filepath.Dir(found.real), Programs: map[string]string{}}
	t.Programs[filepath.Base(c.Programs[0])] = t.Path
	for _, p := range c.Programs[1:] {
		if !s.Sees() { // only running the program shows whether it exists
			t.Programs[filepath.Base(p)] = p
			continue
		}
		r, ok := s.Named(nil, p)
		if !ok {
			return nil, s.Incomplete(t, p+" is not there")
		}
		t.Programs[filepath.Base(p)] = r.Inside()
	}
	if err := c.queryVersion(s, found, t); err != nil || s.InImage() { // an image shows no paths of the host
		return t, err
	}
	v := s.View()
	for _, p := range c.Paths {
		if rest, ok := strings.CutPrefix(p, "~/"); ok {
			p = s.Home(rest)
		}
		if !Exists(p) {
			s.Watch(p)
			return nil, s.Incomplete(t, p+" is not there")
		}
		if err := v.Show(p); err != nil {
			return nil, err
		}
	}
	return s.Finish(t, v, found, nil)
}

func (c *Custom) queryVersion(s *Search, found Program, t *Toolchain) error {
	if len(c.VersionCommand) == 0 {
		return nil
	}
	program, ok := s.Named(nil, c.VersionCommand[0])
	switch {
	case slices.Contains(c.Programs[:1], c.VersionCommand[0]):
		program, ok = found, true
	case !s.Sees():
		program, ok = Program{via: c.VersionCommand[:1]}, true
	}
	if !ok {
		return s.Incomplete(t, c.VersionCommand[0]+", which would say the version, is not there")
	}
	answer, err := s.Query(program.Name(), c.VersionCommand[1:]...)
	if err != nil {
		return err
	}
	if t.Version = cmp.Or(Version(answer.Stdout), Version(answer.Stderr)); t.Version == "" { // many programs print it on standard error
		return errors.New("prints no version")
	}
	return nil
}
