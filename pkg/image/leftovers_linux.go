package image

import (
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// Leftovers lists what Collect would remove now. It makes nothing: the store may be on a disk that can only be read. Layers and downloads are left out while an image is on its way in: then nobody can
// say to whom they belong, and Collect leaves them, too.
func (s *Store) Leftovers() ([]Leftover, error) {
	abandoned, err := s.abandoned()
	if err != nil {
		return nil, failed("image store", err)
	}
	loose, err := s.loose()
	if err != nil {
		return nil, failed("image store", err)
	}
	found := append(abandoned, loose...)
	slices.SortFunc(found, func(a, b Leftover) int { return strings.Compare(a.Path, b.Path) })
	return found, nil
}

// abandoned are work that nobody holds, and roots of no image. Whoever shows an image holds the index meanwhile.
func (s *Store) abandoned() (found []Leftover, err error) {
	index, err := s.glimpse(indexLock, indexPatience)
	if err != nil {
		return nil, err
	}
	defer index.Close() // nil is fine
	entries, err := os.ReadDir(s.path(workDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := s.path(workDir, e.Name())
		if w, err := claim(path); err == nil {
			_ = w.lock.Close()
			found = append(found, Leftover{LeftoverUnpacking, path})
		}
	}
	if entries, err = os.ReadDir(s.path(rootsDir)); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, err := s.readRecord(digestPrefix + e.Name()); !errors.Is(err, ErrNotFound) {
			continue
		}
		if root, err := s.lockRoot(e.Name()); err == nil && root != nil {
			_ = root.Close()
			found = append(found, Leftover{LeftoverRoot, s.path(rootsDir, e.Name())})
		}
	}
	return found, nil
}

// loose are blobs that belong to no image, and downloads that are too old to be gone on with.
func (s *Store) loose() (found []Leftover, err error) {
	content, err := s.glimpse(contentLock, 0)
	if errors.Is(err, userdir.ErrBusy) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer content.Close() // nil is fine
	records, err := s.records()
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, r := range records {
		used[r.ID], used[r.Digest] = true, true
		for _, p := range r.Parts {
			used[p.Digest] = true
		}
	}
	for dir, kind := range map[string]string{blobsDir: LeftoverLayer, partialDir: LeftoverDownload} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if kind == LeftoverLayer && used[digestPrefix+e.Name()] {
				continue
			}
			info, err := e.Info()
			if err != nil || kind == LeftoverDownload && len(e.Name()) == 64 && isHex(e.Name()) && time.Since(info.ModTime()) < partialAge {
				continue
			}
			found = append(found, Leftover{kind, s.path(dir, e.Name())})
		}
	}
	return found, nil
}
