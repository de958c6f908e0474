package toolchain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Finder finds toolchains. Its zero value looks where the process's own environment says.
type Finder struct {
	Store    string        // the file that keeps what was found; default DefaultStore()
	NoStore  bool          // neither read nor write it
	Environ  []string      // PATH, HOME and the variables of version managers; default os.Environ()
	Patience time.Duration // for one program that is asked what it is; default 10 s

	system []string // where the system's own programs are; a test has others

	mu    sync.Mutex
	known map[string]*record       // by key
	busy  map[string]chan struct{} // by key; full while somebody searches
}

// language is one that is known: what its programs are called, where they are if not on PATH, and how to ask them.
type language struct {
	name   string
	names  []string // of the program that is looked for, the best first
	places []string // patterns; ~ is the home directory, $X a variable (a place whose variable is unset is left out)
	ask    func(h *hunt, program resolved) (*Toolchain, error)
	inside func(in *inside, program string) (*Toolchain, error) // in an image
}

// known is the language of a name. Nothing is built of the others.
func known(name string) (language, bool) {
	switch name {
	case Python:
		return python(), true
	case Node:
		return node(), true
	case Go:
		return golang(), true
	case Rust:
		return rust(), true
	case Java:
		return java(), true
	case Shell:
		return shell(), true
	case Postgres:
		return postgres(), true
	}
	return language{}, false
}

// Names are the toolchains that are known without a languages.yaml.
func Names() []string { return []string{Python, Node, Go, Rust, Java, Shell, Postgres} }

// Find finds one of the known toolchains. The error is a *Missing if there is none.
func (f *Finder) Find(ctx context.Context, name string) (*Toolchain, error) {
	l, ok := known(name)
	if !ok {
		return nil, sandbox.Invalid("toolchain", "%q is none of %s", name, strings.Join(Names(), ", "))
	}
	return f.find(ctx, l, "")
}

// Found is one line of All: a toolchain, or why there is none.
type Found struct {
	Name      string
	Toolchain *Toolchain
	Err       error // a *Missing, or what kept us from looking
}

// All finds every known toolchain, side by side.
func (f *Finder) All(ctx context.Context) []Found {
	found := make([]Found, len(Names()))
	var all sync.WaitGroup
	for i, name := range Names() {
		all.Go(func() {
			t, err := f.Find(ctx, name)
			found[i] = Found{Name: name, Toolchain: t, Err: err}
		})
	}
	all.Wait()
	return found
}

// find takes what is known if it still holds, and searches otherwise. detail is what a user's language adds to the key.
func (f *Finder) find(ctx context.Context, l language, detail string) (*Toolchain, error) {
	env := f.environment()
	key := keyOf(l.name, detail, env)
	release, err := f.alone(ctx, key)
	if err != nil {
		return nil, err
	}
	defer release()
	f.mu.Lock()
	held := f.known[key]
	f.mu.Unlock()
	if held != nil && held.holds() {
		return held.Tool.clone(), nil
	}
	store := f.store(env)
	if kept := store.read(l.name, key); kept != nil && kept.holds() {
		f.remember(key, kept)
		return kept.Tool.clone(), nil
	}
	h := newHunt(ctx, env, f.Patience, f.system)
	t, err := h.search(l)
	if err != nil {
		return nil, err
	}
	r := &record{Name: l.name, Key: key, Tool: t, Stamps: h.trail.list()}
	f.remember(key, r)
	store.write(r) // a store that can not be written costs the next one a search, nothing else
	return t.clone(), nil
}

func (f *Finder) remember(key string, r *record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = map[string]*record{}
	}
	f.known[key] = r
}

// alone lets one search at a time for one thing; the others then find it known.
func (f *Finder) alone(ctx context.Context, key string) (release func(), err error) {
	f.mu.Lock()
	if f.busy == nil {
		f.busy = map[string]chan struct{}{}
	}
	one := f.busy[key]
	if one == nil {
		one = make(chan struct{}, 1)
		f.busy[key] = one
	}
	f.mu.Unlock()
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// consulted are the variables that decide which toolchain a user means. Everything else in their environment, the
// variables of a project's tools included, has no say.
var consulted = []string{
	"PATH", "HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME",
	"PYENV_ROOT", "PYENV_VERSION", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO_HOME", "NVM_DIR", "SDKMAN_DIR", "VOLTA_HOME",
	"ASDF_DIR", "ASDF_DATA_DIR", "ASDF_PYTHON_VERSION", "ASDF_NODEJS_VERSION", "ASDF_GOLANG_VERSION", "ASDF_RUST_VERSION",
	"ASDF_JAVA_VERSION", "MISE_DATA_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME",
}

// Consulted are the names of the variables that decide which toolchain a user means.
func Consulted() []string { return slices.Clone(consulted) }

func (f *Finder) environment() map[string]string {
	environ := f.Environ
	if environ == nil {
		environ = os.Environ()
	}
	env := make(map[string]string, len(consulted))
	for _, line := range environ {
		if k, v, ok := strings.Cut(line, "="); ok && slices.Contains(consulted, k) && !strings.ContainsRune(v, 0) {
			env[k] = v
		}
	}
	return env
}

// keyOf names a search: another PATH, another user or another language is another.
func keyOf(name, detail string, env map[string]string) string {
	text := make([]byte, 0, 1024)
	for _, word := range []string{name, detail, strconv.Itoa(os.Geteuid())} {
		text = append(append(text, word...), 0) // no variable contains a NUL
	}
	for _, k := range consulted {
		text = append(append(text, env[k]...), 0)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}
