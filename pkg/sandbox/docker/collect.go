package docker

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Collect finds containers whose supervisors are dead and, unless dryRun, removes them. It leaves containers of supervisors on other
// machines, or of other users: their helpers end them.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	b.registration.mu.Lock()
	err := b.registration.find()
	b.registration.mu.Unlock()
	if err != nil {
		return nil, failure("collect", "supervisor", err)
	}
	d, err := b.connect(ctx)
	if err != nil && b.opts.Host == "" && isNoSocket(err) {
		return nil, nil // a machine without a daemon has no containers
	}
	if err != nil {
		return nil, err
	}
	list, err := d.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: client.Filters{}.Add("label", labelPlace+"="+b.registration.place())})
	if err != nil {
		return nil, failure("list containers", "daemon", err)
	}
	var found []sandbox.Residue
	problem := map[string]bool{}
	release := map[string]func(remove bool){}
	for _, c := range list.Items {
		owner := c.Labels[labelOwner]
		if _, known := release[owner]; !known {
			isDead, how := b.registration.lockDead(owner)
			if !isDead {
				continue
			}
			release[owner] = how
		}
		r := sandbox.Residue{Kind: "container", Name: c.ID[:min(len(c.ID), 12)]}
		if !dryRun {
			if err := d.forceRemove(ctx, c.ID); err != nil {
				r.Problem, problem[owner] = err.Error(), true
			} else {
				r.Removed = true
			}
		}
		found = append(found, r)
	}
	for _, name := range b.registration.names() {
		how, known := release[name]
		if !known {
			isDead, dig := b.registration.lockDead(name)
			if !isDead {
				continue
			}
			how = dig
		}
		r := sandbox.Residue{Kind: "lock", Name: name, Removed: !dryRun && !problem[name]} // after a problem, the next call tries again
		how(r.Removed)
		found = append(found, r)
	}
	return found, nil
}

var errNoSocket = errors.New("no socket of Docker or Podman was found")

// isNoSocket reports an error of connect that says that there is no daemon, and not that it can not be used.
func isNoSocket(err error) bool {
	return !errors.Is(err, syscall.EACCES) && !errors.Is(err, sandbox.ErrRefused) &&
		(errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errNoSocket))
}
