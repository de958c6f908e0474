package api

import (
	"context"
	"errors"
	"path"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// workspaceFields are the fields that allow a larger workspace.
const workspaceFields = "workspace_cap, workspace_inodes"

// inWorkspace runs a job with a workspace of the server as its /workspace. Each principal has its own workspaces.
func (s *Server) inWorkspace(ctx context.Context, j *job) (*executor.Result, error) {
	w, err := s.openWorkspace(ctx, j)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	req := j.req
	release, err := w.Begin(ctx, workspaceFiles(req.Inputs), stop, workspaceFull)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := release(); err != nil {
			s.log.ErrorContext(ctx, "closing a workspace failed", "run", j.ID, "error", err)
		}
	}()
	req.Inputs = nil
	volume := w.Volume()
	volume.CapSettings = workspaceFields
	req.Policy.Volumes = append(req.Policy.Volumes, volume)
	result, err := j.executor.Execute(ctx, req)
	if failed := new(workspace.UnwatchedError); errors.As(context.Cause(ctx), &failed) {
		if result != nil {
			result.Close()
		}
		return nil, errors.Join(failed.Err, err)
	}
	return result, err
}

// openWorkspace opens the workspace of a job.
func (s *Server) openWorkspace(ctx context.Context, j *job) (*workspace.Workspace, error) {
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
	return w, err
}

// workspaceFiles are the inputs of a request as files of a workspace.
func workspaceFiles(inputs []executor.File) []sandbox.File {
	files := make([]sandbox.File, len(inputs))
	for i, f := range inputs {
		files[i] = sandbox.File{Path: path.Join(sandbox.WorkspaceDir, f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open}
	}
	return files
}

func workspaceFull(detail string) *sandbox.DiskFullError {
	return &sandbox.DiskFullError{Detail: detail, Allow: workspaceFields}
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
