package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Remove removes a name, and the image with its last name. With an id or a digest, it removes the image with all of its names;
// more than one name needs force. It keeps an image, and its name, while a sandbox uses it (ErrInUse). removed reports whether
// the image itself is removed.
func (s *Store) Remove(ref string, force bool) (img *Image, removed bool, err error) {
	img, removed, err = s.remove(ref, func(r *record, named bool) error {
		if !named && len(r.Names) > 1 && !force {
			return sandbox.Invalid("image "+shorten(ref), "it has %d names (%s); name one of them, or use --force to remove it with all",
				len(r.Names), strings.Join(r.Names, ", "))
		}
		return nil
	})
	if err != nil {
		return nil, false, notFound(ref, err)
	}
	if removed {
		_ = s.Collect(context.Background()) // the image is removed; the next collection removes the rest
	}
	return img, removed, nil
}

// remove implements Remove, if may allows it for the image.
func (s *Store) remove(ref string, may func(r *record, named bool) error) (*Image, bool, error) {
	w, err := s.newWork()
	if err != nil {
		return nil, false, err
	}
	defer w.close()
	index, err := s.lock(indexLock, false, indexTimeout)
	if err != nil {
		return nil, false, err
	}
	defer index.Close()
	r, err := s.lookup(ref)
	if err != nil {
		return nil, false, err
	}
	if r.Names, err = s.namesOf(r.ID); err != nil {
		return nil, false, err
	}
	name := s.nameIn(ref, r.ID)
	if err := may(r, name != ""); err != nil {
		return nil, false, err
	}
	if name != "" && len(r.Names) > 1 {
		if err := s.removeName(name, r.ID); err != nil {
			return nil, false, err
		}
		return &r.Image, false, syncDir(s.path(namesDir))
	}
	return &r.Image, true, s.removeImage(w, r)
}

// nameIn returns the name by which a reference found an image; empty if it was found by digest or id.
func (s *Store) nameIn(ref, id string) string {
	parsed, err := ParseReference(ref)
	if err != nil || parsed.Digest != "" {
		return ""
	}
	if of, err := s.readName(parsed.String()); err != nil || of != id {
		return ""
	}
	return parsed.String()
}

// removeImage removes names, record and root of an image that is not in use. The caller holds the index.
func (s *Store) removeImage(w *work, r *record) error {
	hex := r.ID[len(digestPrefix):]
	root, err := s.lockRoot(hex)
	if err != nil {
		return err
	}
	if root != nil {
		defer root.Close()
	}
	for _, name := range append(r.digestNames(), r.Names...) {
		if err := s.removeName(name, r.ID); err != nil {
			return err
		}
	}
	if err := os.Remove(s.path(imagesDir, hex+".json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return w.discard(s.path(rootsDir, hex))
}

// lockRoot locks a root for removal: nil without a root, ErrInUse while a sandbox uses it.
func (s *Store) lockRoot(hex string) (*os.File, error) {
	root, err := openDir(s.path(rootsDir, hex))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := userdir.Lock(root, false, 0); err != nil {
		_ = root.Close()
		if errors.Is(err, userdir.ErrBusy) {
			return nil, fmt.Errorf("%w: end the sandboxes that stand on it first", ErrInUse)
		}
		return nil, err
	}
	return root, nil
}

// Prune removes unused images without a name (or all unused images), and everything that belongs to no image.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (*Report, error) {
	records, err := s.records()
	if err != nil {
		return nil, failed("image prune", err)
	}
	before := s.free()
	report := &Report{Images: []*Image{}}
	for _, r := range records {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		if len(r.Names) > 0 && !o.All || o.Older > 0 && time.Since(r.Added) < o.Older || o.Only != nil && !o.Only(&r.Image) {
			continue
		}
		if o.DryRun {
			if l, err := s.lockRoot(r.ID[len(digestPrefix):]); err == nil {
				if l != nil {
					_ = l.Close()
				}
				report.Images = append(report.Images, &r.Image)
				report.Bytes += r.Size
			}
			continue
		}
		_, _, err := s.remove(r.ID, func(now *record, _ bool) error {
			if len(now.Names) > 0 && !o.All {
				return ErrInUse // another process gave it a name meanwhile
			}
			return nil
		})
		if errors.Is(err, ErrInUse) || errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return report, failed("image prune", err)
		}
		report.Images = append(report.Images, &r.Image)
	}
	if o.DryRun {
		return report, nil
	}
	left, err := s.Leftovers()
	if err == nil {
		err = s.Collect(ctx)
	}
	// Other programs use the disk, too: if nothing was removed, they have freed the space.
	if len(report.Images)+len(left) > 0 {
		report.Bytes = max(s.free()-before, 0)
	}
	return report, err
}

func (s *Store) free() int64 {
	var disk unix.Statfs_t
	if unix.Statfs(s.dir, &disk) != nil {
		return 0
	}
	return int64(disk.Bfree) * disk.Bsize
}

// Collect removes leftovers of killed processes, and everything that belongs to no image.
func (s *Store) Collect(ctx context.Context) error {
	return failed("image store", errors.Join(s.collectDead(ctx), s.collectBlobs(), s.syncRoots()))
}

// collectDead removes the work of dead processes, roots without an image, and unfinished files.
func (s *Store) collectDead(ctx context.Context) error {
	orphans, err := s.newWork()
	if err != nil {
		return err
	}
	defer orphans.close()
	dead, err := s.claimLeftovers(orphans)
	for _, w := range dead {
		if ctx.Err() == nil {
			w.close()
		} else {
			_ = w.lock.Close()
		}
	}
	return errors.Join(err, ctx.Err())
}

// claimLeftovers locks the leftovers for collectDead, while no process shows or removes an image.
func (s *Store) claimLeftovers(orphans *work) (dead []*work, err error) {
	index, err := s.lock(indexLock, false, indexTimeout)
	if err != nil {
		return nil, err
	}
	defer index.Close()
	if dead, err = s.claimDead(); err != nil {
		return nil, err
	}
	if err := s.eachOrphanRoot(orphans.discard); err != nil {
		return dead, err
	}
	return dead, s.collectIndex()
}

// claimDead locks the work directories of dead processes. The caller has the index lock.
func (s *Store) claimDead() (dead []*work, err error) {
	entries, err := os.ReadDir(s.path(workDir))
	for _, e := range entries {
		if w, err := claim(s.path(workDir, e.Name())); err == nil {
			dead = append(dead, w)
		}
	}
	return dead, err
}

// eachOrphanRoot calls visit for each locked root without an image and without a sandbox. The caller has the index lock.
func (s *Store) eachOrphanRoot(visit func(path string) error) error {
	entries, err := os.ReadDir(s.path(rootsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := s.readRecord(digestPrefix + e.Name()); !errors.Is(err, ErrNotFound) {
			continue
		}
		root, err := s.lockRoot(e.Name())
		if err != nil || root == nil {
			continue
		}
		err = visit(s.path(rootsDir, e.Name()))
		_ = root.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// collectIndex removes names of missing images, and unfinished files. The caller has the index lock.
func (s *Store) collectIndex() error {
	for _, dir := range []string{namesDir, imagesDir} {
		if err := s.removeUnnamed(dir); err != nil {
			return err
		}
	}
	return s.eachName(func(id, name string) error {
		r, err := s.readRecord(id)
		if errors.Is(err, ErrNotFound) || err == nil && strings.HasPrefix(name, "@") && !slices.Contains(r.digestNames(), name) {
			return s.removeName(name, id)
		}
		return nil
	})
}

func (s *Store) removeUnnamed(dir string) error {
	entries, err := os.ReadDir(s.path(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.Remove(s.path(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// collectBlobs removes blobs that belong to no image and old partial downloads, unless a process is adding an image, which may be
// about to use one. Then the next call removes them.
func (s *Store) collectBlobs() error {
	content, err := s.lock(contentLock, false, 0)
	if errors.Is(err, userdir.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	defer content.Close()
	loose, err := s.looseFiles()
	if err != nil {
		return err // an unreadable record may use any of them
	}
	for _, l := range loose {
		if err := os.Remove(l.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// looseFiles lists blobs that belong to no image, and downloads that are too old to continue. The caller has the exclusive
// content lock, so no process fetches.
func (s *Store) looseFiles() (found []Leftover, err error) {
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
	blobs, err := os.ReadDir(s.path(blobsDir))
	if err != nil {
		return nil, err
	}
	for _, e := range blobs {
		if !used[digestPrefix+e.Name()] {
			found = append(found, Leftover{LeftoverLayer, s.path(blobsDir, e.Name())})
		}
	}
	partial, err := os.ReadDir(s.path(partialDir))
	if err != nil {
		return nil, err
	}
	for _, e := range partial {
		info, err := e.Info()
		if err != nil || len(e.Name()) == 64 && isHex(e.Name()) && time.Since(info.ModTime()) < partialAge {
			continue
		}
		found = append(found, Leftover{LeftoverDownload, s.path(partialDir, e.Name())})
	}
	return found, nil
}

// Leftovers lists what Collect would remove now. It writes nothing: the store may be on a read-only disk. It leaves out layers
// and downloads while a process adds an image: their image is not known yet, and Collect keeps them, too.
func (s *Store) Leftovers() ([]Leftover, error) {
	found, err := s.abandoned()
	if err != nil {
		return nil, failed("image store", err)
	}
	content, err := s.lockExisting(contentLock, 0)
	if err == nil {
		var loose []Leftover
		loose, err = s.looseFiles()
		found = append(found, loose...)
		_ = content.Close() // may be nil
	}
	if err != nil && !errors.Is(err, userdir.ErrBusy) {
		return nil, failed("image store", err)
	}
	slices.SortFunc(found, func(a, b Leftover) int { return strings.Compare(a.Path, b.Path) })
	return found, nil
}

// abandoned lists the work of dead processes and the roots without an image. A process that shows an image has the index lock.
func (s *Store) abandoned() (found []Leftover, err error) {
	index, err := s.lockExisting(indexLock, indexTimeout)
	if err != nil {
		return nil, err
	}
	defer index.Close() // may be nil
	dead, err := s.claimDead()
	if err != nil {
		return nil, err
	}
	for _, w := range dead {
		_ = w.lock.Close()
		found = append(found, Leftover{LeftoverUnpacking, w.dir})
	}
	err = s.eachOrphanRoot(func(path string) error {
		found = append(found, Leftover{LeftoverRoot, path})
		return nil
	})
	return found, err
}
