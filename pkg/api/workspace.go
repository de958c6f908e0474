package api

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// inWorkspace runs a job with a workspace of the server as its /workspace. Each principal has its own workspaces.
func (s *Server) inWorkspace(ctx context.Context, j *job) (*executor.Result, error) {
	store := s.opts.Policy.WorkspaceStore
	if s.opts.Auth != nil {
		if store == "" {
			var err error
			if store, err = workspace.DefaultStore(); err != nil {
				return nil, err
			}
		}
		store = filepath.Join(store, keyOf(j.Principal.ID, "workspaces"))
	}
	w, err := workspace.Open(ctx, store, j.run.Workspace, workspace.Options{
		Cap: j.space.Disk, Inodes: j.space.Inodes, Floor: s.opts.Policy.DiskFloor, Most: s.opts.Policy.MostWorkspaces,
	})
	if errors.Is(err, workspace.ErrMost) {
		return nil, aboveCeiling(err)
	}
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer func() {
		stop(nil)
		watching.Wait()
		if err := w.Close(); err != nil {
			s.log.ErrorContext(ctx, "closing a workspace failed", "run", j.ID, "error", err)
		}
	}()
	req := j.req
	files := make([]sandbox.File, len(req.Inputs))
	for i, f := range req.Inputs {
		files[i] = sandbox.File{Path: path.Join(sandbox.WorkspaceDir, f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open}
	}
	if err := w.Put(ctx, files); err != nil {
		return nil, err
	}
	req.Inputs = nil
	req.Policy.Volumes = append(req.Policy.Volumes, w.Volume())
	watching.Go(func() {
		err := w.Watch(ctx, func(workspace.Usage) {
			most, inodes := w.Cap()
			stop(overfullError{w.Name(), most, inodes})
		})
		if err != nil {
			stop(unwatchedError{err})
		}
	})
	result, err := j.executor.Execute(ctx, req)
	if failed := (unwatchedError{}); errors.As(context.Cause(ctx), &failed) {
		if result != nil {
			result.Close()
		}
		return nil, errors.Join(failed.error, err)
	}
	var full overfullError
	if err == nil && result.Verdict == sandbox.VerdictCancelled && errors.As(context.Cause(ctx), &full) {
		result.Verdict = sandbox.VerdictDiskLimit
		result.Violations = append(result.Violations, sandbox.Violation{
			Kind: "disk", Count: 1, Allow: "workspace_cap, workspace_inodes", Detail: full.Error(),
		})
	}
	return result, err
}

// workspaceLimits returns the limits of a workspace. It replaces the scratch disk, and has its ceilings.
func (s *Server) workspaceLimits(run *wire.Run, p *Principal) (sandbox.Limits, error) {
	asked := executor.Request{Limits: sandbox.Limits{Disk: sandbox.Size(run.WorkspaceCap), Inodes: int(run.WorkspaceInodes)}}
	err := aboveCeiling(s.opts.Policy.Ceilings.Check(&asked, p.Limits))
	var problem *wire.Problem
	if errors.As(err, &problem) {
		named := *problem
		named.Errors = nil
		for _, e := range problem.Errors {
			e.Field = map[string]string{"disk": "workspace_cap", "inodes": "workspace_inodes"}[e.Field]
			named.Errors = append(named.Errors, e)
		}
		if len(named.Errors) > 0 {
			named.Detail = named.Errors[0].Field + ": " + named.Errors[0].Message
		}
		err = &named
	}
	if err != nil {
		return sandbox.Limits{}, err
	}
	most := sandbox.DefaultLimits()
	if asked.Lower != nil {
		var compile sandbox.Limits
		asked.Lower(&most, &compile)
	}
	limits := sandbox.Limits{Disk: asked.Limits.Disk, Inodes: asked.Limits.Inodes}
	// A workspace has defaults of its own; a ceiling below those of the scratch disk lowers them.
	if limits.Disk == 0 && most.Disk < sandbox.DefaultLimits().Disk {
		limits.Disk = most.Disk
	}
	if limits.Inodes == 0 && most.Inodes < sandbox.DefaultLimits().Inodes {
		limits.Inodes = most.Inodes
	}
	return limits, nil
}

// unwatchedError ends a run whose workspace can not be watched, or whose disk is full: a failure of the server.
type unwatchedError struct{ error }

// overfullError ends a run whose workspace is over its cap.
type overfullError struct {
	name   string
	cap    sandbox.Size
	inodes int
}

func (o overfullError) Error() string {
	return fmt.Sprintf("the workspace %s has more than %s or %d files", o.name, o.cap, o.inodes)
}
