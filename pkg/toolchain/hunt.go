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
)

// hunt is one search for one toolchain.
type hunt struct {
	ctx      context.Context
	env      map[string]string
	plain    []string // the environment of programs that are asked
	patience time.Duration
	dirs     []string // of PATH, those that are used
	system   []string // every sandbox's PATH has these
	trail    trail
	skipped  []string
}

func newHunt(ctx context.Context, env map[string]string, patience time.Duration, system []string) *hunt {
	h := &hunt{ctx: ctx, env: env, patience: cmp.Or(patience, askPatience), system: system}
	if system == nil {
		h.system = []string{"/usr/local/bin", "/usr/bin", "/bin"}
	}
	for _, dir := range filepath.SplitList(env["PATH"]) {
		if why := h.unusable(dir); why != "" {
			h.skip("%s", why)
		} else if dir = filepath.Clean(dir); !slices.Contains(h.dirs, dir) {
			h.dirs = append(h.dirs, dir)
		}
	}
	h.plain = h.plainEnv()
	return h
}

// unusable says why a directory on PATH supplies no toolchain. One that does not exist is no reason: it may be made.
func (h *hunt) unusable(dir string) string {
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
	case r.doubt == nil && r.info.IsDir() && r.info.Mode()&0o002 != 0: // sticky or not: anybody may add to it
		r.doubt = fmt.Errorf("%s is writable by everybody", r.real)
	}
	if r.doubt != nil {
		h.trail.place(r.real) // it may be put right
		return fmt.Sprintf("%s on PATH: %v", dir, r.doubt)
	}
	return ""
}

// plainEnv is what programs that are asked get to see: enough for a shim to find its home and the user's choice, nothing
// by which a project or a network could join in.
func (h *hunt) plainEnv() []string {
	env := map[string]string{}
	for k, v := range h.env {
		env[k] = v
	}
	delete(env, "XDG_CACHE_HOME")
	dirs := slices.Clone(h.dirs)
	for _, d := range []string{"/usr/local/bin", "/usr/bin", "/bin"} { // shims are scripts
		if !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	env["PATH"] = strings.Join(dirs, string(filepath.ListSeparator))
	env["LANG"], env["LC_ALL"] = "C.UTF-8", "C.UTF-8"
	env["RUSTUP_AUTO_INSTALL"] = "0"
	env["RUSTUP_DIST_SERVER"], env["RUSTUP_UPDATE_ROOT"] = "http://127.0.0.1:9", "http://127.0.0.1:9" // older rustups know no better
	env["GOTOOLCHAIN"], env["GOENV"], env["GOWORK"], env["GOFLAGS"], env["GOPROXY"] = "local", "off", "off", "", "off"
	env["COREPACK_ENABLE_NETWORK"], env["MISE_OFFLINE"] = "0", "1"
	env["PYTHONDONTWRITEBYTECODE"] = "1"
	environ := make([]string, 0, len(env))
	for k, v := range env {
		environ = append(environ, k+"="+v)
	}
	slices.Sort(environ)
	return environ
}

func (h *hunt) skip(format string, args ...any) {
	said := printable(fmt.Sprintf(format, args...))
	if !slices.Contains(h.skipped, said) {
		h.skipped = append(h.skipped, said)
	}
}

// search asks one candidate after the other until one is whole.
func (h *hunt) search(l language) (*Toolchain, error) {
	var partial *incomplete
	asked := map[string]bool{}
	for candidate := range h.candidates(l) {
		if err := h.ctx.Err(); err != nil {
			return nil, err
		}
		r, err := h.probe(candidate)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				h.skip("%s: %v", candidate, err)
			}
			continue
		}
		// One file may be many programs, by the name it is called by.
		id := r.real + "\x00" + filepath.Base(candidate)
		if asked[id] {
			continue
		}
		asked[id] = true
		t, err := l.ask(h, r)
		if err == nil {
			t.Skipped = h.skipped
			return t, nil
		}
		if ctxErr := h.ctx.Err(); ctxErr != nil {
			return nil, ctxErr
		}
		if lacks := new(incomplete); errors.As(err, &lacks) && partial == nil {
			lacks.partial.Found = cmp.Or(lacks.partial.Found, candidate)
			partial = lacks
		}
		h.skip("%s: %v", candidate, err)
	}
	m := &Missing{Name: l.name, Tried: h.skipped, Install: h.install(l.name)}
	if partial != nil {
		m.Partial, m.Reason = partial.partial, partial.why
		if len(partial.fix) > 0 {
			m.Install = partial.fix
		}
		m.Tried = slices.DeleteFunc(slices.Clone(m.Tried), func(s string) bool { return strings.HasSuffix(s, ": "+partial.why) })
	}
	return nil, m
}

// candidates are the paths at which a language's program may be, in the order of preference. On PATH the directory
// counts before the name.
func (h *hunt) candidates(l language) iter.Seq[string] {
	return func(yield func(string) bool) {
		if venv := h.env["VIRTUAL_ENV"]; l.name == Python && filepath.IsAbs(venv) { // first on PATH as a rule
			if !yield(filepath.Join(venv, "bin", "python3")) || !yield(filepath.Join(venv, "bin", "python")) {
				return
			}
		}
		for _, dir := range h.dirs {
			for _, name := range l.names {
				if !yield(filepath.Join(dir, name)) {
					return
				}
			}
		}
		for _, place := range l.places {
			for _, p := range h.expand(place) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// expand turns a place into the paths that are there, the newest version first.
func (h *hunt) expand(place string) []string {
	if rest, ok := strings.CutPrefix(place, "~/"); ok {
		place = filepath.Join(h.env["HOME"], rest)
	} else if name, ok := strings.CutPrefix(place, "$"); ok {
		name, rest, _ := strings.Cut(name, "/")
		if h.env[name] == "" {
			return nil
		}
		place = filepath.Join(h.env[name], rest)
	}
	if !filepath.IsAbs(place) {
		return nil
	}
	fixed, _, varies := strings.Cut(place, "*")
	if !varies {
		return []string{place}
	}
	if strings.ContainsAny(fixed, `?[\`) { // a home directory of a strange name is no pattern
		return nil
	}
	h.trail.add(filepath.Dir(fixed + "x")) // another version there may be the newest
	paths, _ := filepath.Glob(place)       // its only error is that of a bad pattern
	slices.SortFunc(paths, func(a, b string) int { return compareVersions(b, a) })
	return paths
}

// probe looks for a program, and remembers what it saw.
func (h *hunt) probe(p string) (resolved, error) {
	r, err := program(p)
	h.trail.add(filepath.Clean(p))
	h.trail.add(r.links...)
	if r.real != "" {
		h.trail.add(r.real)
		if dir, err := resolve(filepath.Dir(p)); err == nil {
			h.trail.place(dir.real) // whose it is may change
		}
	}
	return r, err
}

// beside is a program next to another, or "" if it is not there.
func (h *hunt) beside(dir, name string) string {
	p := filepath.Join(dir, name)
	if _, err := h.probe(p); err != nil {
		return ""
	}
	return p
}

// onPath is the first program of one of the names.
func (h *hunt) onPath(names ...string) (resolved, bool) {
	return h.in(slices.Concat(h.dirs, h.system), names...)
}

func (h *hunt) in(dirs []string, names ...string) (resolved, bool) {
	for _, name := range names {
		for _, dir := range dirs {
			if r, err := h.probe(filepath.Join(dir, name)); err == nil {
				return r, true
			}
		}
	}
	return resolved{}, false
}

// behind notes, of a program that was found to be another one in truth, the files in which version managers keep what
// the user chose.
func (h *hunt) behind(found resolved, real string, choices ...string) {
	if found.real == real {
		return
	}
	for _, p := range append(choices, "~/.tool-versions", "~/.asdfrc", "~/.config/mise/config.toml", "/.tool-versions") {
		h.trail.add(h.expand(p)...)
	}
}

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

func isDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}
