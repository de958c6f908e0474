package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// pulled is what is remembered of a pull, so that Update asks registries for their own names only. Any user of a registry may publish an
// image under the name of one that was built here; without this, updating would fetch it. One file a name in the store's directory
// "pulled"; it counts as long as the name still stands for the image that was pulled.
type pulled struct {
	Name     string    `json:"name"`   // normalised
	ID       string    `json:"id"`     // of the image here
	Digest   string    `json:"digest"` // of the manifest there; the same image may have another one elsewhere
	Platform string    `json:"platform"`
	At       time.Time `json:"at"`
}

func recordDir(store *image.Store) string { return filepath.Join(store.Dir(), "pulled") }

func recordPath(store *image.Store, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(recordDir(store), hex.EncodeToString(sum[:16])+".json")
}

// remember writes a record; a reader sees the old or the new one.
func remember(store *image.Store, p pulled) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(recordDir(store), 0o700); err != nil {
		return fmt.Errorf("remember the pull of %s: %w", p.Name, err)
	}
	f, err := os.CreateTemp(recordDir(store), ".new-*")
	if err != nil {
		return fmt.Errorf("remember the pull of %s: %w", p.Name, err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), recordPath(store, p.Name))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("remember the pull of %s: %w", p.Name, err)
	}
	return nil
}

// recallOne returns nil when a name was never pulled.
func recallOne(store *image.Store, name string) (*pulled, error) {
	return readRecord(recordPath(store, name))
}

func readRecord(path string) (*pulled, error) {
	data, err := readSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("what was pulled: %w", err)
	}
	var p pulled
	if err := json.Unmarshal(data, &p); err != nil || p.Name == "" {
		// Cut off by a crash, or not ours: the next pull of the name writes it anew.
		return nil, nil
	}
	return &p, nil
}

// recall returns the names that were pulled and still stand for what was, in order, and drops the records of the others.
func recall(store *image.Store) ([]pulled, error) {
	entries, err := os.ReadDir(recordDir(store))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("what was pulled: %w", err)
	}
	var out []pulled
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		path := filepath.Join(recordDir(store), entry.Name())
		p, err := readRecord(path)
		if err != nil {
			return nil, err
		}
		if p == nil {
			continue
		}
		img, err := store.Lookup(p.Name)
		switch {
		case errors.Is(err, image.ErrNotFound):
			os.Remove(path)
		case err != nil:
			return nil, err
		case img.ID == p.ID:
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b pulled) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
