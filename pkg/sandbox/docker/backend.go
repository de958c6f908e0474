package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Name is the value of --backend for this backend.
const Name = "docker"

// Options configure a Backend; the zero value serves where a daemon is found and every spec names an image.
type Options struct {
	// Host is the daemon's address, as in DOCKER_HOST; empty searches for one.
	Host string
	// Image is the root of sandboxes that name none.
	Image string
	// Runtime is one that the daemon has registered ("runsc"); empty is its default.
	Runtime string
	// Helper is the path of the helper's executable for the daemon's architecture; empty searches for it.
	Helper string
	// Warm is how many containers with the same settings are kept ready, after the first request for such a container.
	Warm int
	// Load opens an image that the daemon does not have, as `docker save` writes it. nil, or the error ErrNoImage: there is none.
	Load func(ctx context.Context, ref string) (io.ReadCloser, error)
	// Substitutors change image names before the daemon sees them, as in testcontainers.
	Substitutors []testcontainers.ImageSubstitutor
	// StateDir is the directory of the registration locks; empty is in the user's cache directory.
	StateDir string
}

// ErrNoImage is the error of Options.Load for an image it does not have.
var ErrNoImage = errors.New("no such image")

// Backend makes containers. It is safe for concurrent use; Close ends it.
type Backend struct {
	opts         Options
	registration registrationLock
	pool         pool

	mu         sync.Mutex
	daemon     *daemon
	closed     bool
	closing    context.Context
	close      context.CancelFunc
	background sync.WaitGroup // goroutines in the background: collecting, preparing, removing
	collect    sync.Once      // removes the leftovers of dead supervisors, in the background of the first Create

	removals  sync.WaitGroup
	unremoved []error // guarded by mu
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
)

// New checks the options. It does not connect to the daemon.
func New(o Options) (*Backend, error) {
	if o.Warm < 0 || o.Warm > maxWarm {
		return nil, sandbox.Invalid("warm", "%d is outside 0…%d", o.Warm, maxWarm)
	}
	if err := checkHost(o.Host); err != nil {
		return nil, err
	}
	b := &Backend{opts: o, registration: registrationLock{dir: o.StateDir}}
	b.closing, b.close = context.WithCancel(context.Background())
	b.pool.b = b
	return b, nil
}

// Name is "docker".
func (b *Backend) Name() string { return Name }

// daemon is the connected daemon and its properties.
type daemon struct {
	*client.Client
	host   string
	info   system.Info
	podman bool
	local  bool // it uses this machine's file system
	arch   string
	remaps bool // its containers have a user namespace already
	helper struct {
		sync.Mutex        // held while the helper is copied
		volume     string // the volume with the helper
		doubted    bool   // a container has found that volume empty
	}
}

// minAPI is the first version with cgroup namespaces: Docker 20.10, Podman 3.
const minAPI = "1.41"

// connectTimeout bounds the first request to a daemon.
const connectTimeout = 15 * time.Second

// connect finds the daemon at first use. After a failure, the next call tries again.
func (b *Backend) connect(ctx context.Context) (*daemon, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, &sandbox.Error{Backend: Name, Op: "create", Kind: sandbox.ErrState, Err: errors.New("the backend is closed")}
	}
	if b.daemon != nil {
		return b.daemon, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("the daemon has not answered within %v", connectTimeout))
	defer cancel()
	d, err := dial(ctx, b.opts.Host)
	if err != nil {
		return nil, err
	}
	if r := b.opts.Runtime; r != "" {
		if _, ok := d.info.Runtimes[r]; !ok && !d.podman {
			_ = d.Close()
			return nil, &sandbox.Error{
				Backend: Name, Op: "runtime " + r, Stage: "daemon", Kind: sandbox.ErrUnsupported,
				Err:  fmt.Errorf("the daemon at %s has %s", d.host, strings.Join(slices.Sorted(maps.Keys(d.info.Runtimes)), ", ")),
				Hint: "register it in the daemon's configuration (\"runtimes\" in /etc/docker/daemon.json)",
			}
		}
	}
	b.daemon = d
	return d, nil
}

// dial connects to a daemon and reads its properties.
func dial(ctx context.Context, host string) (*daemon, error) {
	host, err := findHost(ctx, host)
	if err != nil {
		return nil, err
	}
	opts := []client.Opt{client.WithTLSClientConfigFromEnv(), client.WithHost(host)}
	if strings.HasPrefix(host, "unix://") || strings.HasPrefix(host, "npipe://") {
		opts = opts[1:]
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, &sandbox.Error{Backend: Name, Op: "connect to " + host, Stage: "daemon", Kind: sandbox.ErrInvalid, Err: err}
	}
	d := &daemon{Client: c, host: host, local: strings.HasPrefix(host, "unix://")}
	fail := func(err error) (*daemon, error) {
		_ = c.Close()
		return nil, unreachable(ctx, host, err)
	}
	ping, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err != nil {
		return fail(err)
	}
	if tooOld(ping.APIVersion) {
		return fail(&oldDaemon{ping.APIVersion})
	}
	info, err := c.Info(ctx, client.InfoOptions{})
	if err != nil {
		return fail(err)
	}
	d.info = info.Info
	version, err := c.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return fail(err)
	}
	for _, part := range version.Components {
		d.podman = d.podman || strings.HasPrefix(part.Name, "Podman")
	}
	for _, o := range d.info.SecurityOptions {
		d.remaps = d.remaps || strings.HasPrefix(o, "name=userns") || strings.HasPrefix(o, "name=rootless")
	}
	if d.arch = goArch(d.info.Architecture); d.arch == "" {
		d.arch = goArch(version.Arch)
	}
	return d, nil
}

// goArch is Go's name of an architecture that a daemon names.
func goArch(name string) string {
	switch name {
	case "x86_64", "amd64":
		return "amd64"
	case "aarch64", "arm64":
		return "arm64"
	}
	return ""
}

// Probe returns what the daemon can enforce, as it reports itself. The helper measures each sandbox when it is made.
func (b *Backend) Probe(ctx context.Context) sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	d, err := b.connect(ctx)
	if err != nil {
		iso.Tier = sandbox.TierNone
		remedy := "sandbox-run setup docker"
		if e := new(*sandbox.Error); errors.As(err, e) && (*e).Hint != "" {
			remedy = (*e).Hint
		}
		for _, c := range sandbox.AllControls() {
			iso.Lack(c, sandbox.Absent, err.Error(), remedy)
		}
		return iso
	}
	return d.declaredIsolation(b.opts.Runtime)
}

// Create makes a container, or takes one that was prepared.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	d, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	settings, err := b.settings(d, spec)
	if err != nil {
		return nil, err
	}
	if err := b.registration.register(); err != nil {
		return nil, failure("register", "supervisor", err)
	}
	b.collect.Do(func() { b.runBackground(func(ctx context.Context) { _, _ = b.Collect(ctx, false) }) })
	c := b.pool.take(settings)
	if c == nil {
		if c, err = b.newContainer(ctx, d, settings); err != nil {
			return nil, err
		}
	}
	b.pool.fill(d, settings)
	return newInstance(b, c, spec), nil
}

// runBackground runs do in a goroutine, unless the backend is closed.
func (b *Backend) runBackground(do func(ctx context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.background.Go(func() { do(b.closing) })
	}
}

// removeInBackground waits until the daemon has removed a container whose processes have ended. Close reports errors.
func (b *Backend) removeInBackground(remove func() error) {
	b.removals.Go(func() {
		if err := remove(); err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.unremoved = append(b.unremoved, err)
		}
	})
}

// Close removes the prepared containers and closes the connection to the daemon. Every instance must be destroyed before. It
// blocks until all background work has ended, and may be called twice.
func (b *Backend) Close() error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	d := b.daemon
	b.mu.Unlock()
	if !first {
		return nil
	}
	b.close()
	b.background.Wait()
	b.removals.Wait()
	err := errors.Join(append(b.unremoved, b.pool.empty())...)
	if d != nil {
		err = errors.Join(err, d.Close())
	}
	return errors.Join(err, b.registration.release())
}
