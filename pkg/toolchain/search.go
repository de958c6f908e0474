package toolchain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Search is one search for one toolchain, on this machine or in an image. The Query of a description uses it for all lookups.
type Search struct {
	ctx     context.Context
	d       *Description
	skipped []string
	image   *imageRoot // nil is this machine

	// This machine:
	env     map[string]string
	plain   []string // the environment of queried programs
	timeout time.Duration
	dirs    []string // usable directories of PATH
	system  []string // directories on the PATH of every sandbox
	trail   trail
}

func newSearch(ctx context.Context, d *Description, env map[string]string, timeout time.Duration, system []string) *Search {
	s := &Search{ctx: ctx, d: d, env: env, timeout: cmp.Or(timeout, queryTimeout), system: system}
	if system == nil {
		s.system = []string{"/usr/local/bin", "/usr/bin", "/bin"}
	}
	for _, dir := range filepath.SplitList(env["PATH"]) {
		if why := s.unusable(dir); why != "" {
			s.skip("%s", why)
		} else if dir = filepath.Clean(dir); !slices.Contains(s.dirs, dir) {
			s.dirs = append(s.dirs, dir)
		}
	}
	s.plain = s.plainEnv()
	return s
}

// unusable returns why a directory of PATH is skipped, or "". A missing directory is usable: it may be made later.
func (s *Search) unusable(dir string) string {
	switch {
	case dir == "":
		return "an empty entry of PATH, which means the working directory"
	case !filepath.IsAbs(dir):
		return fmt.Sprintf("%q on PATH: relative to the working directory", dir)
	}
	r, err := resolve(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return fmt.Sprintf("%s on PATH: %v", dir, err)
	case r.doubt == nil && r.info.IsDir() && r.info.Mode()&0o002 != 0: // every user can add files, also if it is sticky
		r.doubt = fmt.Errorf("%s is writable by everybody", r.real)
	}
	if r.doubt != nil {
		s.trail.place(r.real) // the user may correct its mode
		return fmt.Sprintf("%s on PATH: %v", dir, r.doubt)
	}
	return ""
}

// plainEnv returns the environment of queried programs: the variables that a shim needs to find its home and the user's choice, and none
// through which a project or the network has an influence.
func (s *Search) plainEnv() []string {
	dirs := slices.Clone(s.dirs)
	for _, d := range []string{"/usr/local/bin", "/usr/bin", "/bin"} { // shims are scripts
		if !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	environ := append([]string{
		"PATH=" + strings.Join(dirs, string(filepath.ListSeparator)), "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "MISE_OFFLINE=1",
	}, s.d.Settings...)
	for k, v := range s.env {
		if k != "PATH" && k != "XDG_CACHE_HOME" {
			environ = append(environ, k+"="+v)
		}
	}
	slices.Sort(environ)
	return environ
}

func (s *Search) skip(format string, args ...any) {
	reason := printable(fmt.Sprintf(format, args...))
	if !slices.Contains(s.skipped, reason) {
		s.skipped = append(s.skipped, reason)
	}
}

// run queries one candidate after the other until one is complete.
func (s *Search) run() (*Toolchain, error) {
	var partial *incomplete
	queried := map[string]bool{}
	for candidate := range s.candidates() {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		r, err := s.Probe(candidate)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.skip("%s: %v", candidate, err)
			}
			continue
		}
		// One file may be several programs, which differ by argv[0].
		id := r.real + "\x00" + filepath.Base(candidate)
		if queried[id] {
			continue
		}
		queried[id] = true
		t, err := s.d.Query(s, r)
		switch lacks := new(incomplete); {
		case err == nil:
			t.Found, t.Skipped = candidate, s.skipped
			return t, nil
		case s.ctx.Err() != nil:
			return nil, s.ctx.Err()
		case errors.Is(err, errNoSandbox): // the sandbox failed, not the program
			return nil, err
		case errors.As(err, &lacks) && partial == nil:
			lacks.partial.Name, lacks.partial.Found = s.d.Name, cmp.Or(lacks.partial.Found, candidate)
			if partial = lacks; s.image == nil {
				s.skip("%s: %v", candidate, err)
			}
		case s.Sees() || !errors.Is(err, sandbox.ErrNotStarted): // without access to files, ErrNotStarted means that the program is absent
			s.skip("%s: %v", candidate, err)
		}
	}
	m := &Missing{Name: s.d.Name, Tried: s.skipped, Install: s.Install(s.d.Packages)}
	if s.image != nil {
		m.Where = "in the image " + s.image.Name
	}
	if partial != nil {
		m.Partial, m.Reason = partial.partial, partial.why
		if len(partial.fix) > 0 {
			m.Install = partial.fix
		}
		m.Tried = slices.DeleteFunc(slices.Clone(m.Tried), func(t string) bool { return strings.HasSuffix(t, ": "+partial.why) })
	}
	return nil, m
}

// candidates yields the paths at which the program may be, in the order of preference. On PATH the order of directories precedes that of
// names.
func (s *Search) candidates() iter.Seq[string] {
	if s.image != nil {
		return slices.Values(s.image.candidates(s.d))
	}
	return func(yield func(string) bool) {
		places := func(list []string) bool {
			for _, place := range list {
				for _, p := range s.expand(place) {
					if !yield(p) {
						return false
					}
				}
			}
			return true
		}
		if !places(s.d.First) {
			return
		}
		for _, dir := range s.dirs {
			for _, name := range s.d.Programs {
				if !filepath.IsAbs(name) && !yield(filepath.Join(dir, name)) {
					return
				}
			}
		}
		places(s.d.Places)
	}
}

// expand returns the existing paths of a place, the newest version first.
func (s *Search) expand(place string) []string {
	if rest, ok := strings.CutPrefix(place, "~/"); ok {
		place = filepath.Join(s.env["HOME"], rest)
	} else if name, ok := strings.CutPrefix(place, "$"); ok {
		name, rest, _ := strings.Cut(name, "/")
		if s.env[name] == "" {
			return nil
		}
		place = filepath.Join(s.env[name], rest)
	}
	if !filepath.IsAbs(place) {
		return nil
	}
	fixed, _, varies := strings.Cut(place, "*")
	if !varies {
		return []string{place}
	}
	if strings.ContainsAny(fixed, `?[\`) { // the name of the home directory would be a pattern
		return nil
	}
	s.trail.add(filepath.Dir(fixed + "x")) // a newer version may be added there
	paths, _ := filepath.Glob(place)       // its only error is that of a bad pattern
	slices.SortFunc(paths, func(a, b string) int { return compareVersions(b, a) })
	return paths
}

// InImage reports whether the search is in an image: then the toolchain has no mounts, and View and Finish do nothing.
func (s *Search) InImage() bool { return s.image != nil }

// Sees reports whether the search can read files. In an image that only a backend can read, a search knows programs by their
// names and answers.
func (s *Search) Sees() bool { return s.image == nil || s.image.root != nil }

// HasDir reports whether a path is a directory, or can not be read.
func (s *Search) HasDir(p string) bool {
	if s.image != nil {
		return s.image.root == nil || s.image.isDir(p)
	}
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

// Probe resolves a program of the host, and repeats the search when it changes. It returns a path of an image unchanged.
func (s *Search) Probe(p string) (Program, error) {
	if s.image != nil {
		return Program{real: p, via: []string{p}}, nil
	}
	r, err := program(p)
	s.Watch(filepath.Clean(p))
	s.Watch(r.links...)
	if r.real != "" {
		s.Watch(r.real)
		if dir, err := resolve(filepath.Dir(p)); err == nil {
			s.trail.place(dir.real) // the owner may change
		}
	}
	return r, err
}

// Watch repeats the search for the toolchain when one of the paths changes.
func (s *Search) Watch(paths ...string) {
	if s.image == nil {
		s.trail.add(paths...)
	}
}

// At returns the path if there is a program; "" if not. If the search can not see files, it runs the program with the arguments
// to find out.
func (s *Search) At(p string, args ...string) string {
	if s.image != nil {
		return s.image.named(s, args, p)
	}
	if _, err := s.Probe(p); err != nil {
		return ""
	}
	return p
}

// Named returns the first program on PATH, or at an absolute path, with one of the names. args are as for At.
func (s *Search) Named(args []string, names ...string) (Program, bool) {
	return s.namedIn(slices.Concat(s.dirs, s.system), args, names...)
}

// OfSystem returns the program with that name in the system's directories.
func (s *Search) OfSystem(args []string, name string) (Program, bool) {
	return s.namedIn(s.system, args, name)
}

func (s *Search) namedIn(dirs, args []string, names ...string) (Program, bool) {
	if s.image != nil {
		p := s.image.named(s, args, names...)
		return Program{real: p, via: []string{p}}, p != ""
	}
	for _, name := range names {
		if filepath.IsAbs(name) {
			if r, err := s.Probe(name); err == nil {
				return r, true
			}
			continue
		}
		for _, dir := range dirs {
			if r, err := s.Probe(filepath.Join(dir, name)); err == nil {
				return r, true
			}
		}
	}
	return Program{}, false
}

// BehindShim watches the files in which version managers keep the user's choice, if found is a shim of the program real.
func (s *Search) BehindShim(found Program, real string, choices ...string) {
	if s.image != nil || found.real == real {
		return
	}
	for _, p := range append(choices, "~/.tool-versions", "~/.asdfrc", "~/.config/mise/config.toml", "/.tool-versions") {
		s.trail.add(s.expand(p)...)
	}
}

// Home returns a path below the user's home directory.
func (s *Search) Home(rest string) string { return filepath.Join(s.env["HOME"], rest) }

// compareVersions orders names by the numbers in them: v9 before v18, 3.9 before 3.10.
func compareVersions(a, b string) int {
	isDigit := func(c byte) bool { return c >= '0' && c <= '9' }
	number := func(s string) (string, string) {
		i := 0
		for i < len(s) && isDigit(s[i]) {
			i++
		}
		return strings.TrimLeft(s[:i], "0"), s[i:]
	}
	for a != "" && b != "" {
		if isDigit(a[0]) && isDigit(b[0]) {
			var na, nb string
			na, a = number(a)
			nb, b = number(b)
			if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb)); c != 0 {
				return c
			}
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// Exists reports whether a path of the host exists.
func Exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}
