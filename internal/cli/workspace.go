package cli

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// workspaceOptions is a directory that survives the run.
type workspaceOptions struct {
	name   string
	cap    sandbox.Size
	inodes int
}

func (o *workspaceOptions) workspaceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "workspace", "", "show the workspace of this `name` as /workspace: it survives the run")
	addParsed(fs, &o.cap, "workspace-cap", "", "most that it may hold, as a `size` (default what it had, or 1g)", readPositive(sandbox.ParseSize))
	addParsed(fs, &o.inodes, "workspace-inodes", "", "`number` of files it may hold (default what it had, or 65536)", readPositive(readCount))
}

// checkWorkspace refuses what could not be kept: a volume in the place of /workspace hides what is copied there.
func (o *runOptions) checkWorkspace(flags *pflag.FlagSet) error {
	if err := notEmpty(flags, "workspace"); err != nil {
		return err
	}
	taken := ""
	for _, v := range o.spec.Volumes {
		if v.Target == sandbox.WorkspaceDir {
			taken = v.Source
		}
	}
	switch w := &o.workspace; {
	case w.name == "" && (w.cap != 0 || w.inodes != 0):
		return sandbox.Invalid("workspace-cap", "it is of no use without --workspace")
	case w.name != "" && taken != "":
		return sandbox.Invalid("workspace", "%s is to be /workspace already", taken)
	case w.name != "" && len(o.bringing) > 0:
		return &sandbox.Error{
			Op: "out", Kind: sandbox.ErrInvalid, Err: errors.New("what is written to a workspace stays in it"), Hint: "sandbox-run workspace show " + w.name,
		}
	case taken != "" && len(o.bringing) > 0:
		return sandbox.Invalid("out", "/workspace is %s itself; what is written to it stays there", taken)
	case taken != "" && len(o.inputs) > 0:
		return sandbox.Invalid("in", "/workspace is %s itself; put the file there", taken)
	}
	return nil
}

// enterWorkspace opens the workspace for the run, puts the inputs into it, and watches its cap. leave may be called twice.
func (o *runOptions) enterWorkspace(s *stage, req *executor.Request) (leave func() error, err error) {
	if o.workspace.name == "" {
		return func() error { return nil }, nil
	}
	w, err := workspace.Open(s.ctx, "", o.workspace.name, workspace.Options{Cap: o.workspace.cap, Inodes: o.workspace.inodes})
	if err != nil {
		return nil, err
	}
	var watching sync.WaitGroup
	ctx, stopWatching := context.WithCancel(s.ctx)
	leave = sync.OnceValue(func() error {
		stopWatching()
		watching.Wait()
		return w.Close()
	})
	files := make([]sandbox.File, len(req.Inputs))
	for i, f := range req.Inputs {
		files[i] = sandbox.File{Path: path.Join(sandbox.WorkspaceDir, f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open}
	}
	if err := w.Put(s.ctx, files); err != nil {
		return nil, errors.Join(err, leave())
	}
	req.Inputs = nil
	req.Policy.Volumes = append(req.Policy.Volumes, w.Volume())
	watching.Go(func() {
		err := w.Watch(ctx, func(workspace.Usage) {
			most, inodes := w.Cap()
			s.stop(overfull{w.Name(), most, inodes})
		})
		if err != nil {
			s.stop(unwatched{err})
		}
	})
	return leave, nil
}

// unwatched ends a run whose workspace can not be watched, or is on a disk that is full: a failure of ours.
type unwatched struct{ error }

// overfull ends a run whose workspace holds more than it may.
type overfull struct {
	name   string
	cap    sandbox.Size
	inodes int
}

func (o overfull) Error() string {
	return fmt.Sprintf("the workspace %s holds more than %s or %d files; to allow more: --workspace-cap, --workspace-inodes", o.name, o.cap, o.inodes)
}

// judgeWorkspace calls a run that was ended for that by its name.
func judgeWorkspace(s *stage, r *sandbox.Result) {
	var full overfull
	if r.Verdict != sandbox.VerdictCancelled || !errors.As(context.Cause(s.ctx), &full) {
		return
	}
	r.Verdict = sandbox.VerdictDiskLimit
	r.Violations = append(r.Violations, sandbox.Violation{Kind: "disk", Count: 1, Allow: "--workspace-cap, --workspace-inodes", Detail: full.Error()})
}
