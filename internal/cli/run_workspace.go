package cli

import (
	"errors"
	"path"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// workspaceOptions are the flags of the workspace.
type workspaceOptions struct {
	name   string
	cap    sandbox.Size
	inodes int
}

func (o *workspaceOptions) addWorkspaceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "workspace", "", "use the workspace of this `name` as /workspace: its files survive the run")
	AddParsed(fs, &o.cap, "workspace-cap", "", "maximum `size` of the workspace (default unchanged, or 1g for a new one)", ReadSize)
	AddParsed(fs, &o.inodes, "workspace-inodes", "", "maximum `number` of its files (default unchanged, or 65536 for a new one)", ReadCount)
}

// checkWorkspace refuses flags that contradict a workspace, and files to copy into or out of /workspace if a volume is mounted there.
func (o *runOptions) checkWorkspace(flags *pflag.FlagSet) error {
	if err := CheckNotEmpty(flags, "workspace"); err != nil {
		return err
	}
	taken := ""
	for _, v := range o.policy.Volumes {
		if v.Target == sandbox.WorkspaceDir {
			taken = v.Source
		}
	}
	switch w := &o.workspace; {
	case w.name == "" && (w.cap != 0 || w.inodes != 0):
		return sandbox.Invalid("workspace-cap", "it has no effect without --workspace; write it like --workspace NAME")
	case w.name != "" && taken != "":
		return sandbox.Invalid("workspace", "%s is to be /workspace already; leave out --workspace or that volume", taken)
	case w.name != "" && len(o.copyOuts) > 0:
		return &sandbox.Error{
			Op: "out", Kind: sandbox.ErrInvalid, Err: errors.New("what is written to a workspace stays in it"),
			Hint: "sandbox-run workspace show " + w.name,
		}
	case taken != "" && len(o.copyOuts) > 0:
		return sandbox.Invalid("out", "/workspace is %s itself; what is written to it stays there", taken)
	case taken != "" && len(o.inputs) > 0:
		return sandbox.Invalid("in", "/workspace is %s itself; put the file there", taken)
	}
	return nil
}

// enterWorkspace opens the workspace for the run, copies the inputs into it, and watches its cap. The caller calls leave, which may be
// called twice.
func (o *runOptions) enterWorkspace(s *runEnvironment, req *executor.Request) (leave func() error, err error) {
	if o.workspace.name == "" {
		return func() error { return nil }, nil
	}
	w, err := workspace.Open(s.ctx, "", o.workspace.name, workspace.Options{Cap: o.workspace.cap, Inodes: o.workspace.inodes})
	if err != nil {
		return nil, err
	}
	files := make([]sandbox.File, len(req.Inputs))
	for i, f := range req.Inputs {
		files[i] = sandbox.File{Path: path.Join(sandbox.WorkspaceDir, f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open}
	}
	req.Inputs = nil
	req.Policy.Volumes = append(req.Policy.Volumes, w.Volume())
	return w.Begin(s.ctx, files, s.stop, func(detail string) *sandbox.DiskFullError {
		return &sandbox.DiskFullError{Detail: detail + "; to allow more: " + sandbox.WorkspaceFlags, Allow: sandbox.WorkspaceFlags}
	})
}
