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

// Trouble says in a word what keeps this backend from working.
type Trouble string

// The kinds of trouble.
const (
	NoSocket     Trouble = "no_socket"     // there is nobody to talk to
	NoPermission Trouble = "no_permission" // there is somebody, and not for us
	TooOld       Trouble = "too_old"       // it speaks a version of the API that lacks something
	Unreachable  Trouble = "unreachable"   // it does not answer, or answers nonsense
	CannotRun    Trouble = "cannot_run"    // it answers, but runs no container of ours
)

// Health is what a check has found.
type Health struct {
	Trouble Trouble           `json:"trouble,omitempty"` // empty: all is well
	Err     error             `json:"-"`                 // the reason, with the next step
	Host    string            `json:"host,omitempty"`
	Server  string            `json:"server,omitempty"` // "Docker 28.2.2"
	Tier    sandbox.Tier      `json:"tier,omitempty"`
	Started time.Duration     `json:"started,omitempty"` // how long a container took; 0: none was tried, for want of an image
	Details map[string]string `json:"details,omitempty"`
}

// HealthCheck looks whether there is a daemon, whether it is one that we can use and, if an image is named or configured, whether it runs
// a container that holds what we ask for.
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
	h.Tier = d.promise(b.opts.Runtime).Tier
	h.Details = map[string]string{
		"api": d.ClientVersion(), "cgroups": d.info.CgroupVersion, "architecture": d.info.Architecture, "runtimes": strings.Join(runtimes(d.info), " "),
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
		h.Trouble, h.Err = CannotRun, fmt.Errorf("the daemon answers, but does not run a container of ours: %w", err)
	}
	return h
}

// trouble tells the ways apart in which a daemon can not be had.
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
