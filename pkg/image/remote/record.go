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

// pulled is the record of a pull. Update requests only recorded names: any user of a registry may publish an image under the name of one
// that was built here, and without a record Update would fetch it. The store's directory "pulled" has one file for each name. A record is
// valid while the name still belongs to the pulled image.
type pulled struct {
	Name     string    `json:"name"`   // normalised
	ID       string    `json:"id"`     // of the stored image
	Digest   string    `json:"digest"` // of the registry's manifest; another registry may have another one for the same image
	Platform string    `json:"platform"`
	At       time.Time `json:"at"`
}

func recordDir(store *image.Store) string { return filepath.Join(store.Dir(), "pulled") }

func recordPath(store *image.Store, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(recordDir(store), hex.EncodeToString(sum[:16])+".json")
}

// remember writes a record atomically: a reader sees the old or the new one.
func remember(store *image.Store, p pulled) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(recordDir(store), 0o700); err != nil {
		return fmt.Errorf("record the pull of %s: %w", p.Name, err)
	}
	f, err := os.CreateTemp(recordDir(store), ".new-*")
	if err != nil {
		return fmt.Errorf("record the pull of %s: %w", p.Name, err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), recordPath(store, p.Name))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("record the pull of %s: %w", p.Name, err)
	}
	return nil
}

// lookupRecord returns the record of a name, or nil if the name was never pulled.
func lookupRecord(store *image.Store, name string) (*pulled, error) {
	return readRecord(recordPath(store, name))
}

func readRecord(path string) (*pulled, error) {
	data, err := readSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read records of pulls: %w", err)
	}
	var p pulled
	if err := json.Unmarshal(data, &p); err != nil || p.Name == "" {
		// Truncated by a crash, or another file: the next pull of the name replaces it.
		return nil, nil
	}
	return &p, nil
}

// listRecords returns the valid records, sorted by name, and removes the records of names that the store does not have any more.
func listRecords(store *image.Store) ([]pulled, error) {
	entries, err := os.ReadDir(recordDir(store))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read records of pulls: %w", err)
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
