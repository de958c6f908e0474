package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Trouble is the reason why this backend does not work, in a word.
type Trouble string

// The kinds of trouble.
const (
	NoSocket     Trouble = "no_socket"     // no daemon was found
	NoPermission Trouble = "no_permission" // the user may not connect to the daemon
	TooOld       Trouble = "too_old"       // the daemon's API is older than minAPI
	Unreachable  Trouble = "unreachable"   // the daemon does not answer, or not as the API says
	CannotRun    Trouble = "cannot_run"    // the daemon answers, but can not run our container
)

// Health is the result of a check.
type Health struct {
	Trouble Trouble           `json:"trouble,omitempty"` // empty: none
	Err     error             `json:"-"`                 // the reason, with the next step
	Host    string            `json:"host,omitempty"`
	Server  string            `json:"server,omitempty"` // "Docker 28.2.2"
	Tier    sandbox.Tier      `json:"tier,omitempty"`
	Started time.Duration     `json:"started,omitempty"` // how long a container took; 0: none was tried, because no image is known
	Details map[string]string `json:"details,omitempty"`
}

// HealthCheck checks whether there is a usable daemon and, if an image is named or configured, whether it runs
// a container with the requested isolation. It blocks until the container has been removed.
func (b *Backend) HealthCheck(ctx context.Context, image string) Health {
	var h Health
	d, err := b.connect(ctx)
	if err != nil {
		h.Trouble, h.Err = trouble(err), err
		return h
	}
	engine := "Docker"
	if d.podman {
		engine = "Podman"
	}
	h.Host, h.Server = d.host, strings.TrimSpace(engine+" "+d.info.ServerVersion)
	h.Tier = d.declaredIsolation(b.opts.Runtime).Tier
	h.Details = map[string]string{
		"api": d.ClientVersion(), "cgroups": d.info.CgroupVersion, "architecture": d.info.Architecture,
		"runtimes": strings.Join(runtimes(d.info), " "),
	}
	if image == "" {
		image = b.opts.Image
	}
	if image == "" {
		return h
	}
	began := time.Now()
	limits := sandbox.DefaultLimits()
	spec := &sandbox.Spec{
		Root: sandbox.Root{Image: image}, User: sandbox.DefaultUser, Hostname: sandbox.UserName, Limits: limits,
		Workdir: sandbox.WorkspaceDir, Network: sandbox.NetworkNone, Scratch: sandbox.ScratchAuto, Require: sandbox.TierContainer,
	}
	i, err := b.Create(ctx, spec)
	if err == nil {
		h.Started = time.Since(began)
		h.Tier = i.Isolation().Tier
		err = errors.Join(i.Isolation().Check(sandbox.TierContainer, false), i.Destroy(context.WithoutCancel(ctx)))
	}
	if err != nil {
		h.Trouble, h.Err = CannotRun, fmt.Errorf("the daemon answers, but can not run our container: %w", err)
	}
	return h
}

// trouble classifies the error of connect.
func trouble(err error) Trouble {
	var old *oldDaemon
	switch {
	case errors.As(err, &old):
		return TooOld
	case errors.Is(err, syscall.EACCES), errors.Is(err, sandbox.ErrRefused):
		return NoPermission
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, errNoSocket):
		return NoSocket
	}
	return Unreachable
}

var errNoSocket = errors.New("no socket of Docker or Podman was found")
