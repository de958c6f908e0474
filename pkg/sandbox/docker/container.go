package docker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// readyContainer is a container whose helper is ready and in which no program has run.
type readyContainer struct {
	d          *daemon
	id         string
	connection *connection
	settings   *settings
	setup      *containerproto.Setup
	ready      containerproto.Ready
	iso        sandbox.Isolation
	made       time.Time

	removing sync.Once
	removed  error
}

const (
	newContainerTimeout = 60 * time.Second // a busy daemon is slow; after this time it hangs
	removeTimeout       = 15 * time.Second
	maxNames            = 3
)

// newContainer makes a container and waits until its helper is ready. A failure leaves no container.
func (b *Backend) newContainer(ctx context.Context, d *daemon, s *settings) (*readyContainer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, newContainerTimeout,
		fmt.Errorf("the daemon at %s has not made the container within %v", d.host, newContainerTimeout))
	defer cancel()
	c, err := b.tryNewContainer(ctx, d, s)
	if errors.Is(err, errNoHelper) { // the volume was emptied
		d.distrustVolume()
		c, err = b.tryNewContainer(ctx, d, s)
	}
	if err != nil && ctx.Err() != nil {
		err = failure("create container of "+s.Image, "daemon", context.Cause(ctx))
	}
	return c, err
}

func (b *Backend) tryNewContainer(ctx context.Context, d *daemon, s *settings) (*readyContainer, error) {
	volume, err := b.helperVolume(ctx, d, s.Image)
	if err != nil {
		return nil, err
	}
	setup := d.setup(s)
	config, host, err := b.config(d, s, setup, volume)
	if err != nil {
		return nil, err
	}
	id, err := b.create(ctx, d, config, host)
	if err != nil {
		return nil, explainCreate(s, err)
	}
	c := &readyContainer{d: d, id: id, settings: s, setup: setup}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

// create creates the container, and loads the image first if the daemon does not have it and Options.Load has.
func (b *Backend) create(ctx context.Context, d *daemon, config *container.Config, host *container.HostConfig) (string, error) {
	loaded := false
	for tries := 1; ; tries++ {
		id, err := b.createOnce(ctx, d, client.ContainerCreateOptions{Config: config, HostConfig: host, Name: "sandbox-run-" + random(8)})
		switch {
		case err == nil:
			return id, nil
		case errdefs.IsConflict(err) && tries < maxNames: // the random name is in use
		case errdefs.IsNotFound(err) && !loaded && b.opts.Load != nil && strings.Contains(err.Error(), "image"):
			loaded = true
			if err := b.loadImage(ctx, d, config.Image); err != nil {
				return "", err
			}
		default:
			return "", err
		}
	}
}

// createOnce sends one request for a container. The daemon makes it even after the caller has stopped waiting; then it is removed
// as soon as it exists.
func (b *Backend) createOnce(ctx context.Context, d *daemon, o client.ContainerCreateOptions) (string, error) {
	type answer struct {
		id  string
		err error
	}
	asking, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	answered := make(chan answer, 1)
	go func() {
		res, err := d.ContainerCreate(asking, o)
		answered <- answer{res.ID, err}
	}()
	select {
	case a := <-answered:
		giveUp()
		return a.id, a.err
	case <-ctx.Done():
	}
	timer := time.AfterFunc(removeTimeout, giveUp)
	b.removeInBackground(func() error {
		defer giveUp()
		defer timer.Stop()
		a := <-answered
		if a.err != nil {
			return nil
		}
		return (&readyContainer{d: d, id: a.id}).remove()
	})
	return "", context.Cause(ctx)
}

func random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b)
}

// loadImage sends the daemon an image that it does not have.
func (b *Backend) loadImage(ctx context.Context, d *daemon, ref string) error {
	r, err := b.opts.Load(ctx, ref)
	if errors.Is(err, ErrNoImage) {
		return errdefs.ErrNotFound.WithMessage("no such image: " + ref)
	}
	if err != nil {
		return failure("load image "+ref, "image", err)
	}
	defer r.Close()
	res, err := d.ImageLoad(ctx, r)
	if err != nil {
		return failure("load image "+ref, "image", err)
	}
	defer res.Close()
	_, err = io.Copy(io.Discard, res) // the image is loaded when the response ends
	return failure("load image "+ref, "image", err)
}

// explainCreate adds kind and next step to a daemon's error.
func explainCreate(s *settings, err error) error {
	if e := new(*sandbox.Error); errors.As(err, e) {
		return err
	}
	out := &sandbox.Error{Backend: Name, Op: "create container of " + s.Image, Stage: "daemon", Err: err,
		Hint: "sandbox-run doctor --backend docker"}
	switch {
	case errdefs.IsNotFound(err) && strings.Contains(err.Error(), "image"):
		out.Kind, out.Stage = sandbox.ErrInvalid, "image"
		out.Err = fmt.Errorf("the daemon does not have the image: %w", err)
		out.Hint = "docker pull " + s.Image + ", or sandbox-run image pull " + s.Image
	case errdefs.IsInvalidArgument(err):
		out.Kind = sandbox.ErrInvalid
	case client.IsErrConnectionFailed(err):
		out.Hint = "check that the daemon runs: docker version"
	}
	return out
}

var errNoHelper = errors.New("the helper is not in its volume")

// start attaches to the container, starts it, and reads the helper's report.
func (c *readyContainer) start(ctx context.Context) error {
	fail := func(op string, err error) error {
		if strings.Contains(err.Error(), helperFile) && strings.Contains(err.Error(), "no such file") {
			return errNoHelper
		}
		if r := c.settings.Runtime; r != "" {
			op += " with runtime " + r
		}
		return &sandbox.Error{Backend: Name, Op: op, Stage: "daemon", Err: err, Hint: "sandbox-run doctor --backend docker"}
	}
	attached, err := c.d.ContainerAttach(ctx, c.id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return fail("attach to container", err)
	}
	c.connection = serveStream(attached.Conn, attached.Reader)
	heard, sink := newReplySink(1)
	c.connection.mu.Lock()
	c.connection.waiting[0] = sink
	c.connection.mu.Unlock()
	defer c.connection.unregister(0)
	// The setup is in the stream before the helper starts.
	if err := c.connection.conn.Send(containerproto.KindSetup, 0, containerproto.Message(c.setup)); err != nil {
		return fail("talk to helper", c.connection.explain(err))
	}
	if _, err := c.d.ContainerStart(ctx, c.id, client.ContainerStartOptions{}); err != nil {
		return fail("start container", err)
	}
	r, err := c.connection.wait(ctx, heard)
	if err == nil && (containerproto.Parse(r.body, &c.ready) != nil || r.kind != containerproto.KindReady) {
		err = containerproto.ErrMalformed
	}
	if err != nil {
		return fail("set up helper", err)
	}
	if c.setup.Heartbeat > 0 {
		go c.connection.sendHeartbeats()
	}
	c.made = time.Now()
	c.iso = verify(c.d, c.settings, &c.ready)
	if c.ready.Problem != "" && c.ready.Stage != "namespaces" {
		return &sandbox.Error{Backend: Name, Op: "set up helper", Stage: c.ready.Stage, Err: errors.New(c.ready.Problem),
			Hint: "sandbox-run doctor --backend docker"}
	}
	for n, want := range c.settings.idents {
		// The daemon resolves names, and a name may have been replaced since it was checked (F6).
		if n >= len(c.ready.Volumes) || c.ready.Volumes[n] != want {
			return &sandbox.Error{
				Backend: Name, Op: "volume " + c.settings.Volumes[n].Source, Stage: "volumes", Kind: sandbox.ErrRefused,
				Err: errors.New("the container has another file there: the source was replaced meanwhile"),
			}
		}
	}
	if len(c.ready.Writable) > 0 {
		return &sandbox.Error{
			Backend: Name, Op: "create container of " + c.settings.Image, Stage: "volumes", Kind: sandbox.ErrRefused,
			Err:  fmt.Errorf("the image declares volumes at %s, which have no size limit", strings.Join(c.ready.Writable, ", ")),
			Hint: "an image without VOLUME",
		}
	}
	return nil
}

// remove ends the container and blocks until the daemon has removed it. It may be called twice.
func (c *readyContainer) remove() error {
	c.removing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
		defer cancel()
		gone := c.d.watchRemoval(ctx, c.id) // before the container can be gone
		if c.connection != nil {
			c.connection.close()
		}
		graceful := time.NewTimer(removeByItself)
		defer graceful.Stop()
		if c.connection != nil && c.ready.Version != 0 { // the helper exits at the end of its input, and the daemon removes the container
			select {
			case is := <-gone:
				if is {
					return
				}
			case <-graceful.C:
			}
		}
		c.removed = c.d.forceRemove(ctx, c.id)
	})
	return c.removed
}

// watchRemoval subscribes to the removal of a container. The channel receives true when it is removed, false if the daemon can not
// report it.
func (d *daemon) watchRemoval(ctx context.Context, id string) <-chan bool {
	gone := make(chan bool, 1)
	wait := d.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	go func() { // the client's own goroutine ends after one of the two channels has delivered; both end with ctx
		select {
		case <-wait.Result:
			gone <- true
		case err := <-wait.Error:
			gone <- isGone(err)
		}
	}()
	return gone
}

// removeByItself is how long the daemon has to remove a container by itself.
const removeByItself = 2 * time.Second

// isGone reports that the daemon has no such container.
func isGone(err error) bool { return err != nil && errdefs.IsNotFound(err) }

// forceRemove kills and removes a container in any state.
func (d *daemon) forceRemove(ctx context.Context, id string) error {
	for {
		_, err := d.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || isGone(err) {
			return nil
		}
		if !errdefs.IsConflict(err) { // a conflict: another client or the daemon itself is removing it
			return failure("remove container "+id[:min(len(id), 12)], "cleanup", err)
		}
		if _, err := d.ContainerInspect(ctx, id, client.ContainerInspectOptions{}); isGone(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return failure("remove container "+id[:min(len(id), 12)], "cleanup", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// oomTimeout bounds the wait until the daemon knows why a container has ended.
const oomTimeout = time.Second

// ranOutOfMemory reports whether the daemon has seen an OOM kill in a container. The
// container itself may be removed already; the daemon keeps its events for a while. Podman does not report OOM kills.
func (d *daemon) ranOutOfMemory(ctx context.Context, id string, since time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, oomTimeout)
	defer cancel()
	// No end is given: it would refer to the daemon's clock. The end of the container ends the list.
	res := d.Events(ctx, client.EventsListOptions{
		Since:   strconv.FormatInt(since.Add(-time.Minute).Unix(), 10),
		Filters: client.Filters{}.Add("container", id).Add("event", "oom", "destroy"),
	})
	for {
		select {
		case m := <-res.Messages:
			switch m.Action {
			case "oom":
				return true
			case "destroy":
				return false
			}
		case <-res.Err:
			return false
		}
	}
}
