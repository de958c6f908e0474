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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// box is a container whose helper is ready and in which nothing has run.
type box struct {
	d       *daemon
	id      string
	session *session
	shape   *shape
	setup   *wire.Setup
	ready   wire.Ready
	iso     sandbox.Isolation
	made    time.Time

	removing sync.Once
	removed  error
}

const (
	launchPatience = 60 * time.Second // a daemon under load is slow; longer than this it is stuck
	removePatience = 15 * time.Second
	maxNames       = 3
)

// launch makes a container and waits until its helper is ready. What fails leaves nothing.
func (b *Backend) launch(ctx context.Context, d *daemon, s *shape) (*box, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, launchPatience, fmt.Errorf("the daemon at %s has not made the container within %v", d.host, launchPatience))
	defer cancel()
	c, err := b.tryLaunch(ctx, d, s)
	if errors.Is(err, errNoHelper) { // somebody has emptied the volume
		d.doubt()
		c, err = b.tryLaunch(ctx, d, s)
	}
	if err != nil && ctx.Err() != nil {
		err = failure("create container of "+s.Image, "daemon", context.Cause(ctx))
	}
	return c, err
}

func (b *Backend) tryLaunch(ctx context.Context, d *daemon, s *shape) (*box, error) {
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
	c := &box{d: d, id: id, shape: s, setup: setup}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

// create asks for the container; for the image first, if the daemon lacks it and somebody else has it.
func (b *Backend) create(ctx context.Context, d *daemon, config *container.Config, host *container.HostConfig) (string, error) {
	loaded := false
	for tries := 1; ; tries++ {
		id, err := b.order(ctx, d, client.ContainerCreateOptions{Config: config, HostConfig: host, Name: "sandbox-run-" + random(8)})
		switch {
		case err == nil:
			return id, nil
		case errdefs.IsConflict(err) && tries < maxNames: // of all names, this one is taken
		case errdefs.IsNotFound(err) && !loaded && b.opts.Load != nil && strings.Contains(err.Error(), "image"):
			loaded = true
			if err := b.load(ctx, d, config.Image); err != nil {
				return "", err
			}
		default:
			return "", err
		}
	}
}

// order asks for a container once. A daemon that was asked makes it, whether anybody still waits or not: who does not wait any more has it removed
// when it is there.
func (b *Backend) order(ctx context.Context, d *daemon, o client.ContainerCreateOptions) (string, error) {
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
	patience := time.AfterFunc(removePatience, giveUp)
	b.removeBeside(func() error {
		defer giveUp()
		defer patience.Stop()
		a := <-answered
		if a.err != nil {
			return nil
		}
		return (&box{d: d, id: a.id}).remove()
	})
	return "", context.Cause(ctx)
}

func random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b)
}

// load gives the daemon an image that it does not have.
func (b *Backend) load(ctx context.Context, d *daemon, ref string) error {
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
	_, err = io.Copy(io.Discard, res) // it is loaded when the daemon has said all it has to say
	return failure("load image "+ref, "image", err)
}

// explainCreate says what a daemon's refusal means.
func explainCreate(s *shape, err error) error {
	if e := new(*sandbox.Error); errors.As(err, e) {
		return err
	}
	out := &sandbox.Error{Backend: Name, Op: "create container of " + s.Image, Stage: "daemon", Err: err, Hint: "sandbox-run doctor --backend docker"}
	switch {
	case errdefs.IsNotFound(err) && strings.Contains(err.Error(), "image"):
		out.Kind, out.Stage = sandbox.ErrInvalid, "image"
		out.Err = fmt.Errorf("the daemon does not have the image: %w", err)
		out.Hint = "docker pull " + s.Image + ", or sandbox-run image pull " + s.Image
	case errdefs.IsInvalidArgument(err):
		out.Kind = sandbox.ErrInvalid
	case client.IsErrConnectionFailed(err):
		out.Hint = "look whether the daemon still runs: docker version"
	}
	return out
}

var errNoHelper = errors.New("the helper is not in its volume")

// start attaches to the container, starts it, and hears what its helper finds itself in.
func (c *box) start(ctx context.Context) error {
	fail := func(op string, err error) error {
		if strings.Contains(err.Error(), helperFile) && strings.Contains(err.Error(), "no such file") {
			return errNoHelper
		}
		if r := c.shape.Runtime; r != "" {
			op += " with runtime " + r
		}
		return &sandbox.Error{Backend: Name, Op: op, Stage: "daemon", Err: err, Hint: "sandbox-run doctor --backend docker"}
	}
	attached, err := c.d.ContainerAttach(ctx, c.id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return fail("attach to container", err)
	}
	c.session = converse(attached.Conn, attached.Reader)
	heard := make(chan reply, 1)
	c.session.mu.Lock()
	c.session.waiting[0] = func(kind wire.Kind, body []byte) {
		select {
		case heard <- reply{kind, append([]byte(nil), body...)}:
		default:
		}
	}
	c.session.mu.Unlock()
	defer c.session.forget(0)
	// The setup lies ready when the helper first looks.
	if err := c.session.conn.Send(wire.KindSetup, 0, wire.Message(c.setup)); err != nil {
		return fail("talk to helper", c.session.explain(err))
	}
	if _, err := c.d.ContainerStart(ctx, c.id, client.ContainerStartOptions{}); err != nil {
		return fail("start container", err)
	}
	select {
	case r := <-heard:
		if err := wire.Parse(r.body, &c.ready); r.kind != wire.KindReady || err != nil {
			return fail("set up helper", wire.ErrMalformed)
		}
	case <-c.session.done:
		return fail("set up helper", c.session.explain(nil))
	case <-ctx.Done():
		return fail("set up helper", context.Cause(ctx))
	}
	if c.setup.Heartbeat > 0 {
		go c.session.beat()
	}
	c.made = time.Now()
	c.iso = verify(c.d, c.shape, &c.ready)
	if c.ready.Problem != "" && c.ready.Stage != "namespaces" {
		return &sandbox.Error{Backend: Name, Op: "set up helper", Stage: c.ready.Stage, Err: errors.New(c.ready.Problem), Hint: "sandbox-run doctor --backend docker"}
	}
	for n, want := range c.shape.idents {
		// The daemon goes by names, and a name may have changed hands since it was looked at (F6).
		if n >= len(c.ready.Volumes) || c.ready.Volumes[n] != want {
			return &sandbox.Error{
				Backend: Name, Op: "volume " + c.shape.Volumes[n].Source, Stage: "volumes", Kind: sandbox.ErrRefused,
				Err: errors.New("it is not what the container has: somebody has put something else in its place meanwhile"),
			}
		}
	}
	if len(c.ready.Writable) > 0 {
		return &sandbox.Error{
			Backend: Name, Op: "create container of " + c.shape.Image, Stage: "volumes", Kind: sandbox.ErrRefused,
			Err:  fmt.Errorf("the image declares volumes at %s, which no limit would hold", strings.Join(c.ready.Writable, ", ")),
			Hint: "an image without VOLUME",
		}
	}
	return nil
}

// remove ends the container and waits until the daemon has removed it. Twice is fine.
func (c *box) remove() error {
	c.removing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), removePatience)
		defer cancel()
		gone := c.d.awaitRemoval(ctx, c.id) // before the container can be gone
		if c.session != nil {
			c.session.close()
		}
		graceful := time.NewTimer(removeByItself)
		defer graceful.Stop()
		if c.session != nil && c.ready.Version != 0 { // the helper ends on the end of its input, and the daemon removes
			select {
			case is := <-gone:
				if is {
					return
				}
			case <-graceful.C:
			}
		}
		c.removed = c.d.force(ctx, c.id)
	})
	return c.removed
}

// awaitRemoval asks the daemon to tell when a container is removed. False: it can not tell.
func (d *daemon) awaitRemoval(ctx context.Context, id string) <-chan bool {
	gone := make(chan bool, 1)
	wait := d.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	go func() { // until one of them has come, the client's own goroutine does not end; both end with ctx
		select {
		case <-wait.Result:
			gone <- true
		case err := <-wait.Error:
			gone <- isGone(err)
		}
	}()
	return gone
}

// removeByItself is how long a container has to go by itself.
const removeByItself = 2 * time.Second

// isGone: the daemon knows of no such container (any more).
func isGone(err error) bool { return err != nil && errdefs.IsNotFound(err) }

// force kills and removes a container, whatever state it is in.
func (d *daemon) force(ctx context.Context, id string) error {
	for {
		_, err := d.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || isGone(err) {
			return nil
		}
		if !errdefs.IsConflict(err) { // else: somebody else is at it, the daemon itself perhaps
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

// oomPatience is how long a daemon may take to hear from the kernel why a container has ended.
const oomPatience = time.Second

// ranOutOfMemory reports whether the daemon has seen the kernel end something in a container because its memory ran out. The
// container itself may be removed already; what happened to it is kept a while. Podman does not tell.
func (d *daemon) ranOutOfMemory(ctx context.Context, id string, since time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, oomPatience)
	defer cancel()
	// No end is named: that would go by the daemon's clock. The end of the container is what ends this.
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
