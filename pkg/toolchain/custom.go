package toolchain

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Custom is a language of a user's own.
type Custom struct {
	Name string
	// Programs are names to look for on PATH, or absolute paths. The first is the main one; all must be there.
	Programs []string
	// VersionCommand prints the version; its first word may name one of the programs. Empty: no version.
	VersionCommand []string
	// Paths are further files and directories of the host that the language needs; ~ is the home directory.
	Paths []string
}

// Custom finds a toolchain that is described by its user.
func (f *Finder) Custom(ctx context.Context, c Custom) (*Toolchain, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	l := language{name: c.Name, ask: c.ask}
	if main := c.Programs[0]; filepath.IsAbs(main) {
		l.places = []string{main}
	} else {
		l.names = []string{main}
		for _, dir := range []string{"/usr/local/bin/", "/usr/bin/", "/bin/"} {
			l.places = append(l.places, dir+main)
		}
	}
	return f.find(ctx, l, fmt.Sprintf("%q %q %q", c.Programs, c.VersionCommand, c.Paths))
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

func (c *Custom) ask(h *hunt, found resolved) (*Toolchain, error) {
	t := &Toolchain{Name: c.Name, Path: nameInside(found), Home: filepath.Dir(found.real), Programs: map[string]string{}}
	t.Programs[filepath.Base(c.Programs[0])] = t.Path
	for _, p := range c.Programs[1:] {
		r, ok := h.named(p)
		if !ok {
			return nil, &incomplete{t, p + " is not there", nil}
		}
		t.Programs[filepath.Base(p)] = nameInside(r)
	}
	if len(c.VersionCommand) > 0 {
		asked, ok := h.named(c.VersionCommand[0])
		if slices.Contains(c.Programs[:1], c.VersionCommand[0]) {
			asked, ok = found, true
		}
		if !ok {
			return nil, &incomplete{t, c.VersionCommand[0] + ", which would say the version, is not there", nil}
		}
		said, err := h.ask(asked.via[0], c.VersionCommand[1:]...)
		if err != nil {
			return nil, err
		}
		if t.Version = versionIn(said.stdout); t.Version == "" {
			t.Version = versionIn(said.stderr) // many say it there
		}
		if t.Version == "" {
			return nil, errors.New("prints no version")
		}
	}
	v := h.view(c.Name)
	for _, p := range c.Paths {
		if rest, ok := strings.CutPrefix(p, "~/"); ok {
			p = filepath.Join(h.env["HOME"], rest)
		}
		if !exists(p) {
			h.trail.add(p)
			return nil, &incomplete{t, p + " is not there", nil}
		}
		if err := v.show(p); err != nil {
			return nil, err
		}
	}
	return h.finish(t, v, found, nil)
}

// named is a program by its absolute path or its name on PATH.
func (h *hunt) named(p string) (resolved, bool) {
	if filepath.IsAbs(p) {
		r, err := h.probe(p)
		return r, err == nil
	}
	return h.onPath(p)
}
