package deps

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// host is the first part of the names of layers in the image store. It is no registry's: .invalid is reserved.
const host = "packages.sandbox-run.invalid/"

// lockName is the file of a layer with its lock.
const lockName = "lock.json"

// Store has the layers of a user's image store.
type Store struct {
	// Open opens the image store, and makes it if create is set. Without create it returns nil for a store that does not exist.
	Open func(create bool) (*image.Store, error)
	// Dir is the directory of locks.
	Dir string
	// Quota is the size of all layers of a tenant; 0: without bound.
	Quota sandbox.Size
}

// Lease is a layer that is kept until Release.
type Lease struct {
	language.Layer
	Release func()
	touch   func() // notes the use, for Store.Quota
}

// ErrNotFound: there is no layer of that key.
var ErrNotFound = errors.New("the packages are not installed")

func name(l string, k Key) string { return host + l + ":" + string(k) }

// Find leases the layer of a key. Its error is ErrNotFound without one.
func (s *Store) Find(l string, k Key) (*Lease, error) {
	store, err := s.Open(false)
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, ErrNotFound
	}
	img, err := store.Lookup(name(l, k))
	if errors.Is(err, image.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	lease, err := use(store, img)
	if err == nil {
		lease.touch()
	}
	return lease, err
}

func use(store *image.Store, img *image.Image) (*Lease, error) {
	lease, err := store.Use(img)
	if errors.Is(err, image.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	found := &Lease{
		Layer:   language.Layer{ID: img.ID, Dir: lease.Dir(), Lock: new(language.Lock)},
		Release: func() { _ = lease.Close() }, touch: lease.Touch,
	}
	text, err := os.ReadFile(filepath.Join(lease.Dir(), lockName))
	if err == nil {
		err = json.Unmarshal(text, found.Lock)
	}
	if err != nil {
		found.Release()
		return nil, fmt.Errorf("read the lock of layer %s: %w", img.ID, err)
	}
	return found, nil
}

// Lock waits until no other process installs the key's packages, and keeps others from it until the result is closed.
func (s *Store) Lock(ctx context.Context, k Key) (io.Closer, error) {
	// One of a fixed number of files, so that none has to be removed. Keys that share one wait for each other.
	return s.lock(ctx, "lock-"+string(k[len(k)-2:]))
}

func (s *Store) lock(ctx context.Context, name string) (io.Closer, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := userdir.OpenDir(s.Dir, userdir.Write)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.Open(name, userdir.Write)
	if err != nil {
		return nil, err
	}
	for {
		err := userdir.Lock(f, false, lockInterval)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, userdir.ErrBusy) {
			err = ctx.Err()
		}
		if err != nil {
			_ = f.Close()
			return nil, err
		}
	}
}

const lockInterval = 100 * time.Millisecond

// Add keeps the archive of an installation under a key, with its lock, and leases it.
func (s *Store) Add(ctx context.Context, k Key, archive io.ReaderAt, size int64, lock *language.Lock) (*Lease, error) {
	store, err := s.Open(true)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(lock)
	if err != nil {
		return nil, err
	}
	var second bytes.Buffer
	w := tar.NewWriter(&second)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: lockName, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	layer := func(from io.ReaderAt, size int64) image.Layer {
		return image.Layer{Open: func(_ context.Context, offset int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(from, offset, size-offset)), nil
		}}
	}
	if s.Quota > 0 {
		held, err := s.lock(ctx, "quota-"+k.tenant()[:min(2, len(k.tenant()))]) // until the layer counts
		if err != nil {
			return nil, err
		}
		defer held.Close()
		if err := s.makeRoom(store, k, sandbox.Size(size)); err != nil {
			return nil, err
		}
	}
	before, _ := store.Lookup(name(lock.Language, k)) // nil: there is none
	old := ""
	if before != nil { // its name moves to the new one; with another name it counts for its tenant as long as it is there
		old = name(lock.Language, replaced(k, before.ID))
		if _, err := store.Tag(before.ID, old); err != nil {
			return nil, err
		}
	}
	img, err := store.Add(ctx, image.Source{
		Names: []string{name(lock.Language, k)}, Config: layerConfig, Layers: []image.Layer{layer(archive, size), layer(bytes.NewReader(second.Bytes()), int64(second.Len()))},
	})
	if before != nil { // one that a sandbox shows stays, until a later installation needs its place, or deps prune
		_, _, removed := store.Remove(old, false)
		if err == nil && removed != nil && !errors.Is(removed, image.ErrInUse) && !errors.Is(removed, image.ErrNotFound) {
			err = removed
		}
	}
	if err != nil {
		return nil, err
	}
	return use(store, img)
}

// replacedMark begins the last part of a key of a layer that another one has replaced.
const replacedMark = "replaced-"

// replaced returns the key of the replaced layer of a key.
func replaced(k Key, id string) Key {
	own := replacedMark + strings.TrimPrefix(id, "sha256:")[:16]
	if tenant := k.tenant(); tenant != "" {
		own = tenant + "." + own
	}
	return Key(own)
}

// makeRoom removes layers of the tenant of a key, until another one of that size is within the quota.
func (s *Store) makeRoom(store *image.Store, k Key, size sandbox.Size) error {
	images, err := store.List()
	if err != nil {
		return err
	}
	var used sandbox.Size
	own := map[*image.Image][]string{} // the tenant's names
	for _, img := range images {
		for _, n := range img.Names {
			_, key, layer := strings.Cut(strings.TrimPrefix(n, host), ":")
			if layer && strings.HasPrefix(n, host) && Key(key).tenant() == k.tenant() {
				own[img] = append(own[img], n)
			}
		}
		if own[img] != nil {
			used += sandbox.Size(img.Size)
		}
	}
	refuse := func(why string, args ...any) error {
		return sandbox.Errorf(sandbox.ErrRefused, "deps",
			"fewer or smaller packages, sandbox-run deps rm on the server's machine, or a larger max-layers-size",
			"the packages need %v, and all layers of a key may have %v (max-layers-size)%s", size, s.Quota, fmt.Sprintf(why, args...))
	}
	if size > s.Quota {
		return refuse("")
	}
	for _, img := range slices.SortedFunc(maps.Keys(own), func(a, b *image.Image) int { return store.LastUse(a).Compare(store.LastUse(b)) }) {
		if used+size <= s.Quota {
			return nil
		}
		var busy error
		for _, n := range own[img] {
			if _, _, err := store.Remove(n, false); errors.Is(err, image.ErrInUse) {
				busy = err
			} else if err != nil && !errors.Is(err, image.ErrNotFound) {
				return err
			}
		}
		if busy == nil {
			used -= sandbox.Size(img.Size)
		}
	}
	if used+size <= s.Quota {
		return nil
	}
	return refuse("; running programs of the key use layers with %v", used)
}

// Info describes a kept layer.
type Info struct {
	ID       string             `json:"id"`
	Language string             `json:"language"`
	Keys     []Key              `json:"keys"`
	Size     int64              `json:"size"`
	Added    time.Time          `json:"added"`
	Lock     *language.Lock     `json:"lock,omitempty"`
	Error    *sandbox.ErrorInfo `json:"error,omitempty"`
}

// layerConfig is the configuration of a layer's image, with a label by which the image is known also when its name has moved to another one.
var layerConfig = []byte(`{"os":"` + runtime.GOOS + `","architecture":"` + runtime.GOARCH + `","config":{"Labels":{"` + label + `":""}}}`)

const label = "invalid.sandbox-run.packages"

// IsLayer reports whether an image of the store is a layer.
func IsLayer(img *image.Image) bool {
	if _, found := img.Config.Labels[label]; found {
		return true
	}
	return slices.ContainsFunc(img.Names, func(n string) bool { return strings.HasPrefix(n, host) })
}

// List returns all layers, the newest first.
func (s *Store) List() ([]Info, error) {
	store, err := s.Open(false)
	if err != nil || store == nil {
		return nil, err
	}
	images, err := store.List()
	if err != nil {
		return nil, err
	}
	var list []Info
	for _, img := range images {
		if !IsLayer(img) {
			continue
		}
		i := Info{ID: img.ID, Size: img.Size, Added: img.Added}
		for _, n := range img.Names {
			if rest, ok := strings.CutPrefix(n, host); ok {
				l, key, _ := strings.Cut(rest, ":")
				if i.Language = l; !strings.Contains(key, replacedMark) {
					i.Keys = append(i.Keys, Key(key))
				}
			}
		}
		if lease, err := use(store, img); err == nil {
			i.Lock, i.Language = lease.Lock, cmp.Or(i.Language, lease.Lock.Language)
			lease.Release()
		} else {
			i.Error = sandbox.Describe(err)
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b Info) int { return b.Added.Compare(a.Added) })
	return list, nil
}

// shownID is how much of an id people read and write.
const shownID = 12

// Short returns the beginning of the layer's id.
func (i *Info) Short() string {
	hex := strings.TrimPrefix(i.ID, "sha256:")
	return hex[:min(len(hex), shownID)]
}

// Get returns the layer whose id begins like that.
func (s *Store) Get(id string) (*Info, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	var found *Info
	for n := range list {
		if id == "" || !strings.HasPrefix(strings.TrimPrefix(list[n].ID, "sha256:"), strings.TrimPrefix(id, "sha256:")) {
			continue
		}
		if found != nil {
			return nil, sandbox.Errorf(sandbox.ErrInvalid, "layer "+id, "more digits of the id", "several layers have an id that begins so")
		}
		found = &list[n]
	}
	if found == nil {
		return nil, sandbox.Errorf(sandbox.ErrNotFound, "layer "+id, "sandbox-run deps list", "there is none with such an id")
	}
	return found, nil
}

// Remove removes a layer. The error is image.ErrInUse for one that a sandbox shows.
func (s *Store) Remove(i *Info) error {
	store, err := s.Open(false)
	if err != nil || store == nil {
		return err
	}
	_, _, err = store.Remove(i.ID, true)
	return err
}

// Prune removes the layers that were added longer ago, unless a sandbox shows them.
func (s *Store) Prune(ctx context.Context, older time.Duration, dryRun bool) (*image.Report, error) {
	store, err := s.Open(false)
	if err != nil || store == nil {
		return &image.Report{Images: []*image.Image{}}, err
	}
	return store.Prune(ctx, image.PruneOptions{All: true, Older: older, DryRun: dryRun, Only: IsLayer})
}
