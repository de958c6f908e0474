package remote

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// Outcome is what became of a name.
type Outcome string

// The outcomes. Of a name that is gone from its registry the image here stays.
const (
	Updated   Outcome = "updated"
	Unchanged Outcome = "unchanged"
	Gone      Outcome = "gone"
	NotDone   Outcome = "failed"
)

// Change is what Update found out about one name.
type Change struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Old     string  `json:"old,omitempty"` // digest of the manifest, as it was pulled
	New     string  `json:"new,omitempty"` // and as it is now; empty unless updated
	Message string  `json:"message,omitempty"`
	Err     error   `json:"-"` // of NotDone, and why it is Gone
}

// checks is how many registries are asked at a time.
const checks = 4

// Update looks whether names that were pulled stand for other images by now, and fetches those that do. Without refs it is all names that
// were pulled; names that were built, imported or given here belong to this machine, whatever a registry has under them, and are refused
// when they are asked for. Names by digest can not change, and are unchanged without a look.
//
// The error is about the store or the refs. Failures of registries are in the Changes, which have the order of the refs, or that
// of the names; a failed image does not stop the others.
func Update(ctx context.Context, store *image.Store, refs []string, opts Options) ([]Change, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	records, err := refreshable(store, refs)
	if err != nil {
		return nil, err
	}
	changes := make([]Change, len(records))
	found := make([]*remoteImage, len(records))
	var checking errgroup.Group
	checking.SetLimit(checks)
	for i := range records {
		checking.Go(func() error {
			changes[i], found[i] = check(ctx, records[i], opts)
			return nil
		})
	}
	_ = checking.Wait() // what fails is in the changes
	for i, r := range found {
		if r == nil {
			continue
		}
		_, err := r.pull(ctx, store)
		r.close()
		if err != nil {
			changes[i] = changes[i].failed(err)
			continue
		}
		changes[i].Outcome, changes[i].New = Updated, r.digest
	}
	if err := ctx.Err(); err != nil {
		return changes, context.Cause(ctx)
	}
	return changes, nil
}

// refreshable are the names to look at.
func refreshable(store *image.Store, refs []string) ([]pulled, error) {
	if len(refs) == 0 {
		return recall(store)
	}
	var out []pulled
	for _, ref := range refs {
		name, err := parseReference(ref)
		if err != nil {
			return nil, err
		}
		img, err := store.Lookup(name.String())
		if err != nil {
			return nil, fmt.Errorf("update %s: %w; try: sandbox-run image pull %s", ref, err, ref)
		}
		record, err := recallOne(store, name.String())
		if err != nil {
			return nil, err
		}
		if record == nil || record.ID != img.ID {
			return nil,
				fmt.Errorf("update %s: this image was built, imported or named here, not pulled; to have the registry's in its place: sandbox-run "+
					"image pull %s", ref, ref)
		}
		out = append(out, *record)
	}
	return out, nil
}

// check asks the registry what a name stands for. The image is returned when it is another one than here.
func check(ctx context.Context, record pulled, opts Options) (Change, *remoteImage) {
	change := Change{Name: record.Name, Outcome: Unchanged, Old: record.Digest}
	name, err := parseReference(record.Name)
	if err != nil {
		return change.failed(err), nil
	}
	if name.Digest != "" {
		return change, nil
	}
	opts.Platform = record.Platform                          // it was chosen when the image was pulled
	opts.Insecure = opts.Insecure && loopbackName(name.host) // the others are not meant
	found, err := find(ctx, name, opts)
	switch {
	case errors.Is(err, ErrNotFound):
		change.Outcome, change.Err, change.Message = Gone, err, err.Error()
		return change, nil
	case err != nil:
		return change.failed(err), nil
	case found.digest == record.Digest:
		found.close()
		found.report.image(Done, "")
		return change, nil
	}
	return change, found
}

func (c Change) failed(err error) Change {
	c.Outcome, c.Err, c.Message = NotDone, err, err.Error()
	return c
}
