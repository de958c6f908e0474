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
)

// Finder finds toolchains. Its zero value uses the environment of the process.
type Finder struct {
	Store   string        // the file that keeps found toolchains; default DefaultStore()
	NoStore bool          // neither read nor write Store
	Environ []string      // PATH, HOME and the variables of version managers; default os.Environ()
	Timeout time.Duration // of one query; default 10 s

	system []string // directories of the system's own programs; tests set others

	mu    sync.Mutex
	known map[string]*record       // by key
	busy  map[string]chan struct{} // by key; full during a search
}

// Find finds a toolchain on this machine. It returns the stored one if its stamps still match, and searches otherwise. The error is a
// *Missing if there is none.
func (f *Finder) Find(ctx context.Context, d *Description) (*Toolchain, error) {
	env := f.environment(d.Variables)
	return f.find(ctx, d, keyOf(d, env), f.store(env), func() (*Toolchain, []string, error) {
		s := newSearch(ctx, d, env, f.Timeout, f.system)
		t, err := s.run()
		return t, s.trail.seen, err
	})
}

// find takes what this process or the store knows under a key if that still holds, and searches otherwise.
func (f *Finder) find(
	ctx context.Context, d *Description, key string, store store, search func() (t *Toolchain, stamps []string, err error),
) (*Toolchain, error) {
	release, err := f.lockKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer release()
	f.mu.Lock()
	r := f.known[key]
	f.mu.Unlock()
	if r != nil && r.holds() {
		return r.Tool.clone(), nil
	}
	if r = store.read(d.Name, key); r == nil || !r.holds() {
		t, stamps, err := search()
		if err != nil {
			return nil, err
		}
		r = &record{Name: d.Name, Key: key, Tool: t, Stamps: stamps}
		store.write(r) // a store that can not be written costs the next process a search
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = map[string]*record{}
	}
	f.known[key] = r
	return r.Tool.clone(), nil
}

// lockKey lets one goroutine at a time search for a key. Goroutines that waited find the result in f.known.
func (f *Finder) lockKey(ctx context.Context, key string) (release func(), err error) {
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

// commonVariables select the toolchain together with the variables of a description. Other variables, such as those of a project's
// tools, have no influence.
var commonVariables = []string{"PATH", "HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR"}

// CommonVariables returns the environment variables that select a toolchain in addition to those of its description.
func CommonVariables() []string { return slices.Clone(commonVariables) }

// environment returns the values of the common variables and of own.
func (f *Finder) environment(own []string) map[string]string {
	environ := f.Environ
	if environ == nil {
		environ = os.Environ()
	}
	env := make(map[string]string, len(commonVariables)+len(own))
	for _, line := range environ {
		k, v, ok := strings.Cut(line, "=")
		if counts := slices.Contains(commonVariables, k) || slices.Contains(own, k); ok && counts && !strings.ContainsRune(v, 0) {
			env[k] = v
		}
	}
	return env
}

// keyOf returns the key of a search. It depends on the description and on all variables, so on PATH and the user's home.
func keyOf(d *Description, env map[string]string) string {
	text := make([]byte, 0, 1024)
	for _, word := range []string{d.Name, d.Detail, strconv.Itoa(os.Geteuid())} {
		text = append(append(text, word...), 0) // no variable contains a NUL
	}
	for _, names := range [][]string{commonVariables, d.Variables} {
		for _, k := range names {
			text = append(append(text, env[k]...), 0)
		}
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}
