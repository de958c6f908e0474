package key

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Key describes a key without its secret.
type Key struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Scopes  []string  `json:"scopes"`
	Limits  Limits    `json:"limits"`
	Created time.Time `json:"created"`
	Rotated time.Time `json:"rotated,omitzero"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	Used    time.Time `json:"used,omitzero"`    // last use, at most useInterval late
	// Secret identifies the secret by which Ring.Check found the key, for Ring.Good: rotation gives the key another one. It does not
	// reveal the secret.
	Secret string `json:"-"`
}

// Expired reports whether the key has expired.
func (k Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// The scopes of keys.
const (
	ScopeRun   = "run"   // start runs; follow, feed, fetch and cancel runs of the same key
	ScopeRead  = "read"  // see runs of the same key and the languages; start nothing
	ScopeAdmin = "admin" // all of that, metrics, and the health check that runs a sandbox
)

// Scopes lists all scopes.
func Scopes() []string { return []string{ScopeRun, ScopeRead, ScopeAdmin} }

// New describes a key to create.
type New struct {
	Name    string
	Scopes  []string // empty: ScopeRun
	Expires time.Time
	Limits  Limits
}

// record is a key as the file has it.
type record struct {
	Key
	Hash string    `json:"hash"`
	Old  string    `json:"old_hash,omitempty"` // of the token before the rotation,
	Till time.Time `json:"old_until,omitzero"` // which is valid until then
}

type document struct {
	Version int      `json:"version"`
	Keys    []record `json:"keys"`
}

const (
	version     = 1
	lockTimeout = 10 * time.Second // for another process to finish its change
	mostKeys    = 10_000
	mostFile    = 32 << 20
	mostName    = 64
)

// Store is a file of keys. Its methods may be called concurrently, also by several processes.
type Store struct{ path string }

// DefaultPath returns the path of this user's keys: $XDG_DATA_HOME/sandbox-run/keys.json.
func DefaultPath() (string, error) {
	dir, err := userdir.Data()
	if err != nil {
		return "", &sandbox.Error{Op: "keys", Err: err, Hint: "--keys FILE"}
	}
	return filepath.Join(dir, "keys.json"), nil
}

// Open returns the store of a file, which need not exist; an empty path is DefaultPath.
func Open(path string) (*Store, error) {
	if path == "" {
		var err error
		if path, err = DefaultPath(); err != nil {
			return nil, err
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &sandbox.Error{Op: "keys", Err: err}
	}
	return &Store{path: path}, nil
}

// Path returns the path of the file.
func (s *Store) Path() string { return s.path }

// Create makes a key and returns its token. The store keeps only a hash of the token, so no later call returns it.
func (s *Store) Create(ctx context.Context, n New) (k Key, token string, err error) {
	if err := n.complete(time.Now()); err != nil {
		return Key{}, "", err
	}
	err = s.change(ctx, func(doc *document) error {
		if len(doc.Keys) >= mostKeys {
			return sandbox.Invalid("key", "there are %d already; remove some", len(doc.Keys))
		}
		if slices.ContainsFunc(doc.Keys, func(r record) bool { return r.Name == n.Name }) {
			return &sandbox.Error{
				Op: "key " + n.Name, Kind: sandbox.ErrInvalid, Err: errors.New("there is one of that name"),
				Hint: "another name, or sandbox-run key rotate " + n.Name,
			}
		}
		id := newID()
		for slices.ContainsFunc(doc.Keys, func(r record) bool { return r.ID == id }) {
			id = newID()
		}
		k = Key{ID: id, Name: n.Name, Scopes: n.Scopes, Limits: n.Limits, Created: time.Now().UTC().Truncate(time.Second), Expires: n.Expires}
		r := record{Key: k}
		token, r.Hash = newToken(id)
		doc.Keys = append(doc.Keys, r)
		return nil
	})
	if err != nil {
		return Key{}, "", err
	}
	return k, token, nil
}

func (n *New) complete(now time.Time) error {
	if err := checkName(n.Name); err != nil {
		return err
	}
	if len(n.Scopes) == 0 {
		n.Scopes = []string{ScopeRun}
	}
	for _, scope := range n.Scopes {
		if !slices.Contains(Scopes(), scope) {
			if like := nearest.Word(scope, Scopes()); like != "" {
				return sandbox.Invalid("scopes", "unknown scope %q; %s?", scope, like)
			}
			return sandbox.Invalid("scopes", "unknown scope %q; use one of %s", scope, strings.Join(Scopes(), ", "))
		}
	}
	slices.Sort(n.Scopes)
	n.Scopes = slices.Compact(n.Scopes)
	if n.Expires = n.Expires.UTC().Truncate(time.Second); !n.Expires.IsZero() && !n.Expires.After(now) {
		return sandbox.Invalid("expires", "%s is over", n.Expires.Format(time.RFC3339))
	}
	return nil
}

// checkName accepts names that need no quotes on a command line and in a log.
func checkName(name string) error {
	odd := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-@+", r) || r == unicode.ReplacementChar
	}
	switch {
	case name == "":
		return &sandbox.Error{Op: "name", Kind: sandbox.ErrInvalid, Err: errors.New("a key needs one, to be told from others"),
			Hint: "--name NAME"}
	case len(name) > mostName:
		return sandbox.Invalid("name", "%d bytes are more than %d", len(name), mostName)
	case strings.HasPrefix(name, "-"), strings.ContainsFunc(name, odd):
		return sandbox.Invalid("name", "%q: letters, digits and . _ - @ + only, the first not a -", name)
	}
	return nil
}

// List returns all keys, in the order of their creation.
func (s *Store) List(ctx context.Context) ([]Key, error) {
	doc, err := s.read(ctx, userdir.Read)
	if err != nil {
		return nil, err
	}
	used := s.readUsed()
	keys := make([]Key, len(doc.Keys))
	for i, r := range doc.Keys {
		keys[i] = r.Key
		keys[i].Used = used[r.ID]
	}
	return keys, nil
}

// Show returns the key with that name or id.
func (s *Store) Show(ctx context.Context, name string) (Key, error) {
	keys, err := s.List(ctx)
	if err != nil {
		return Key{}, err
	}
	i, err := find(keys, name, func(k Key) Key { return k })
	if err != nil {
		return Key{}, err
	}
	return keys[i], nil
}

// find returns the index of the key with that name or id.
func find[T any](all []T, name string, keyOf func(T) Key) (int, error) {
	names := make([]string, len(all))
	for i, one := range all {
		k := keyOf(one)
		if k.Name == name || k.ID == name {
			return i, nil
		}
		names[i] = k.Name
	}
	hint := "sandbox-run key list"
	if like := nearest.Word(name, names); like != "" {
		hint = like + ", or " + hint
	}
	return 0, &sandbox.Error{Op: fmt.Sprintf("key %q", name), Kind: sandbox.ErrInvalid, Err: errors.New("no key has that name or id"),
		Hint: hint}
}

func (doc *document) find(name string) (int, error) {
	return find(doc.Keys, name, func(r record) Key { return r.Key })
}

// Remove removes the key with that name or id. Servers refuse it from then on.
func (s *Store) Remove(ctx context.Context, name string) (k Key, err error) {
	err = s.change(ctx, func(doc *document) error {
		i, err := doc.find(name)
		if err != nil {
			return err
		}
		k = doc.Keys[i].Key
		doc.Keys = slices.Delete(doc.Keys, i, i+1)
		return nil
	})
	return k, err
}

// Rotate gives a key a new secret and returns the token. The id stays, and so do the runs and files of the key. The old secret
// stays valid for the overlap, which may be zero.
func (s *Store) Rotate(ctx context.Context, name string, overlap time.Duration) (k Key, token string, err error) {
	if overlap < 0 {
		return Key{}, "", sandbox.Invalid("overlap", "%v is less than nothing", overlap)
	}
	err = s.change(ctx, func(doc *document) error {
		i, err := doc.find(name)
		if err != nil {
			return err
		}
		r := &doc.Keys[i]
		now := time.Now().UTC()
		r.Old, r.Till = "", time.Time{}
		if overlap > 0 {
			r.Old, r.Till = r.Hash, now.Add(overlap)
		}
		token, r.Hash = newToken(r.ID)
		r.Rotated = now.Truncate(time.Second)
		k = r.Key
		return nil
	})
	if err != nil {
		return Key{}, "", err
	}
	return k, token, nil
}

// read returns the keys of the file; a missing file has no keys. A server that admits requests by these keys has to trust the
// file: root may list the keys of every user, and must not use them as its own.
func (s *Store) read(ctx context.Context, purpose userdir.Purpose) (*document, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := userdir.OpenDir(filepath.Dir(s.path), purpose)
	if errors.Is(err, fs.ErrNotExist) {
		return &document{Version: version}, nil
	}
	if err != nil {
		return nil, s.failed("read", err)
	}
	defer dir.Close()
	return s.readIn(dir, purpose)
}

func (s *Store) readIn(dir *userdir.Dir, purpose userdir.Purpose) (*document, error) {
	f, err := dir.Open(filepath.Base(s.path), purpose)
	if errors.Is(err, fs.ErrNotExist) {
		return &document{Version: version}, nil
	}
	if err != nil {
		return nil, s.failed("read", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, s.failed("read", err)
	}
	// A user who can write this file can make a key.
	if info.Mode().Perm()&0o077 != 0 {
		return nil, &sandbox.Error{
			Op: "keys in " + s.path, Err: fmt.Errorf("others can read or write them (mode %04o)", info.Mode().Perm()),
			Hint: "chmod 0600 " + sandbox.ShellQuote(s.path),
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	if err == nil && len(data) > mostFile {
		err = fmt.Errorf("more than %d bytes", mostFile)
	}
	var doc *document
	if err == nil {
		doc, err = decode(data)
	}
	if err != nil {
		return nil, s.failed("read", err)
	}
	return doc, nil
}

// decode is strict: an unknown field may be one that restricts a key.
func decode(data []byte) (*document, error) {
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	var doc document
	if err := in.Decode(&doc); err != nil {
		return nil, fmt.Errorf("not a file of keys: %w", err)
	}
	if doc.Version != version {
		return nil, fmt.Errorf("version %d of the file is not known here; a newer sandbox-run has written it", doc.Version)
	}
	seen := map[string]bool{}
	for _, r := range doc.Keys {
		if !isID(r.ID) || len(r.Hash) != 64 || seen[r.ID] || seen[r.Name] {
			return nil, fmt.Errorf("not a file of keys: key %q has no hash, or an id or name that is none or another's", r.ID)
		}
		seen[r.ID], seen[r.Name] = true, true
	}
	return &doc, nil
}

func (s *Store) failed(op string, err error) error {
	return &sandbox.Error{Op: op + " keys in " + s.path, Err: err}
}

// change reads, changes and replaces the keys, under the lock against other processes.
func (s *Store) change(ctx context.Context, change func(*document) error) error {
	dir, unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	doc, err := s.readIn(dir, userdir.Trust)
	if err != nil {
		return err
	}
	if err := change(doc); err != nil {
		return err
	}
	if err := dir.Replace(filepath.Base(s.path), true, func(w io.Writer) error {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(doc)
	}); err != nil {
		return s.failed("write", err)
	}
	return nil
}

// lock keeps other processes from changing the keys until the caller calls unlock.
func (s *Store) lock(ctx context.Context) (dir *userdir.Dir, unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if dir, err = userdir.OpenDir(filepath.Dir(s.path), userdir.Write); err != nil {
		return nil, nil, s.failed("write", err)
	}
	f, err := dir.Open(filepath.Base(s.path)+".lock", userdir.Write)
	if err == nil {
		if err = userdir.Lock(f, false, lockTimeout); err != nil {
			f.Close()
		}
	}
	if err != nil {
		dir.Close()
		return nil, nil, s.failed("write", err)
	}
	return dir, func() {
		f.Close()
		dir.Close()
	}, nil
}

// readUsed returns the last uses of keys, as far as servers have written them.
func (s *Store) readUsed() map[string]time.Time {
	used := map[string]time.Time{}
	data, err := os.ReadFile(s.path + ".used")
	if err == nil {
		_ = json.Unmarshal(data, &used) // keeps what a damaged file has
	}
	return used
}

// writeUsed adds last uses to the file, and drops those of removed keys.
func (s *Store) writeUsed(ctx context.Context, now map[string]time.Time) error {
	dir, unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	doc, err := s.readIn(dir, userdir.Trust)
	if err != nil {
		return err
	}
	before, after := s.readUsed(), map[string]time.Time{}
	for _, r := range doc.Keys {
		last := before[r.ID]
		if now[r.ID].After(last) {
			last = now[r.ID]
		}
		if !last.IsZero() {
			after[r.ID] = last
		}
	}
	if err := dir.Replace(filepath.Base(s.path)+".used", false, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(after)
	}); err != nil {
		return s.failed("write the use of", err)
	}
	return nil
}
