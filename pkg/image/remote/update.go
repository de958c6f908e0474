package remote

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// Outcome is the result of Update for a name.
type Outcome string

// The outcomes. If a name is gone from its registry, the stored image stays.
const (
	Updated   Outcome = "updated"
	Unchanged Outcome = "unchanged"
	Gone      Outcome = "gone"
	NotDone   Outcome = "failed"
)

// Change is the result of Update for one name.
type Change struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Old     string  `json:"old,omitempty"` // digest of the pulled manifest
	New     string  `json:"new,omitempty"` // digest of the present manifest; empty unless updated
	Message string  `json:"message,omitempty"`
	Err     error   `json:"-"` // set if the outcome is NotDone or Gone
}

// checks is the number of concurrent requests to registries.
const checks = 4

// Update checks whether pulled names belong to other images in their registries by now, and fetches those images. Without refs it checks
// all pulled names. A ref that was built, imported or named on this machine is an error, also if a registry has that name. A name with a
// digest is unchanged, without a request.
//
// The error is about the store or the refs. Failures of registries are in the Changes, in the order of the refs or of the names. A failed
// image does not stop the others.
func Update(ctx context.Context, store *image.Store, refs []string, opts Options) ([]Change, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	records, err := selectRecords(store, refs)
	if err != nil {
		return nil, err
	}
	changes := make([]Change, len(records))
	found := make([]*remoteImage, len(records))
	var checking errgroup.Group
	checking.SetLimit(checks)
	for i := range records {
		checking.Go(func() error {
			changes[i], found[i] = checkName(ctx, records[i], opts)
			return nil
		})
	}
	_ = checking.Wait() // failures are in the changes
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

// selectRecords returns the records of refs; without refs, all records.
func selectRecords(store *image.Store, refs []string) ([]pulled, error) {
	if len(refs) == 0 {
		return listRecords(store)
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
		record, err := lookupRecord(store, name.String())
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

// checkName resolves a name in its registry. It returns the image if it differs from the stored one.
func checkName(ctx context.Context, record pulled, opts Options) (Change, *remoteImage) {
	change := Change{Name: record.Name, Outcome: Unchanged, Old: record.Digest}
	name, err := parseReference(record.Name)
	if err != nil {
		return change.failed(err), nil
	}
	if name.Digest != "" {
		return change, nil
	}
	opts.Platform = record.Platform                          // the platform of the pull
	opts.Insecure = opts.Insecure && loopbackName(name.host) // other registries always use HTTPS
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
