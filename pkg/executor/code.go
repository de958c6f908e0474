package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// CodeExecutor is an Executor with default settings: the default backend, the machine's toolchains, no cache, and the user's
// images and audit log (if there is one; SANDBOX_RUN_AUDIT_LOG names another, or is off). It serves callers that need one line;
// New serves callers that choose. The first call opens the backend, and Close closes it.
type CodeExecutor struct {
	timeout time.Duration

	open    sync.Once
	err     error
	backend sandbox.Backend
	manager *sandbox.Manager
	engine  *Executor
	log     *audit.Log // nil: no audit log
}

// ExecutionRequest is a piece of code.
type ExecutionRequest struct {
	Language string
	Code     string
	Timeout  time.Duration // 0: that of the executor
}

// ExecutionResult is the result of a piece of code. Error is the reason if it did not succeed. ExitCode is that of the program or
// of the command line: 124 at the time limit, 137 at the memory limit, 128 plus the number of a signal.
type ExecutionResult struct {
	Stdout          string
	Stderr          string
	ExitCode        int
	ProgramExitCode *int // the program's own; nil if a signal ended it or it did not run
	ExecutionTime   time.Duration
	Error           error
	Notes           []string // limits that were lowered, a failed write to the audit log
}

// NewCodeExecutor returns an executor whose runs take at most that long; 0 is the default of 30 seconds.
func NewCodeExecutor(timeout time.Duration) *CodeExecutor { return &CodeExecutor{timeout: timeout} }

func (c *CodeExecutor) ready() error {
	c.open.Do(func() {
		if c.backend, c.err = openDefault(); c.err == nil {
			c.manager = sandbox.NewManager(c.backend, sandbox.Options{})
			c.log, c.err = userLog()
			kit, _ := kitpath.Find() // a language that needs the kit reports that it is missing
			c.engine = New(c.manager, Options{Kit: kit, Audit: c.log, EntryPoint: audit.EntryLibrary, Images: StoredImages(userImages)})
		}
	})
	return c.err
}

// userLog opens the audit log that the environment names, or the user's own if the user can have one.
func userLog() (*audit.Log, error) {
	path := os.Getenv("SANDBOX_RUN_AUDIT_LOG")
	if path == "off" {
		return nil, nil
	}
	log, err := audit.Open(path, audit.Options{})
	if err != nil && path == "" {
		return nil, nil // a user without a home directory
	}
	return log, err
}

// Close deletes the running sandboxes and closes the backend. A second call does nothing.
func (c *CodeExecutor) Close() error {
	c.open.Do(func() { c.err = errors.New("the executor is closed") })
	if c.manager == nil {
		return nil
	}
	return errors.Join(c.manager.Close(), c.backend.Close())
}

// Execute runs a piece of code. The error reports an invalid request or a failure of the sandbox; a failure of the code is in the
// result.
func (c *CodeExecutor) Execute(ctx context.Context, req ExecutionRequest) (*ExecutionResult, error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	limits := sandbox.Limits{Wall: cmp.Or(req.Timeout, c.timeout)}
	r, err := c.engine.Execute(ctx, Request{Language: req.Language, Code: req.Code, Limits: limits})
	if err != nil {
		return nil, err
	}
	return &ExecutionResult{
		Stdout: string(r.Stdout.Bytes()), Stderr: string(r.Stderr.Bytes()),
		ExitCode: r.ExitCode(), ProgramExitCode: r.ProgramExitCode(),
		ExecutionTime: r.Metrics.WallTime.Duration(), Error: language.VerdictError(&r.Result), Notes: r.Notes,
	}, nil
}

// SandboxConfig configures ExecuteCommand. A zero field has the default beside it.
type SandboxConfig struct {
	Image       string        // on which the command runs; empty: the programs of this machine
	Timeout     time.Duration // 5 minutes
	CPULimit    string        // "1"
	MemoryLimit string        // "2g"
	Workdir     string        // /workspace; without files, that of the image
}

// MountedFile is a file for a command. Path is absolute, or relative to the working directory.
type MountedFile struct {
	Path    string
	Content []byte
	Mode    uint32 // permission bits; 0: 0644
}

// ResourceStats is the resource usage of a command.
type ResourceStats struct {
	CPUUsagePercent float64
	MemoryUsageMB   float64
	MaxMemoryMB     float64 // the limit
}

// CommandResult is the result of a command.
type CommandResult struct {
	ExitCode        int  // as in ExecutionResult
	ProgramExitCode *int // as in ExecutionResult
	Stdout          string
	Stderr          string
	Duration        time.Duration
	ResourceUsage   ResourceStats
	Error           error    // why the command did not succeed
	Notes           []string // as in ExecutionResult
}

const (
	commandTimeout = 5 * time.Minute
	commandMemory  = 2 * sandbox.GiB
)

// ExecuteCommand runs a command line with sh in a fresh sandbox with the given files.
func (c *CodeExecutor) ExecuteCommand(ctx context.Context, command string, config SandboxConfig,
	files ...MountedFile) (*CommandResult, error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	spec, put, err := config.spec(files, c.manager.Machine())
	if err != nil {
		return nil, err
	}
	var said []string
	if config.Image != "" {
		img, err := LookUpImage(ctx, c.manager, c.engine.opts.Images, config.Image)
		if err != nil {
			return nil, err
		}
		defer img.Close() // after the sandbox is deleted
		said = img.Apply(&spec)
	}
	id, err := c.manager.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.manager.Delete(context.WithoutCancel(ctx), id) }() // Close finds and reports leftovers
	if err := c.manager.Put(ctx, id, put); err != nil {
		return nil, err
	}
	args := []string{"/bin/sh", "-c", command}
	r, err := c.manager.Run(ctx, id, sandbox.Process{Args: args}, sandbox.IO{})
	var unlogged error
	if c.log != nil {
		unlogged = c.log.Append(NewAuditEntry(audit.EntryLibrary, id, args, &spec, r, err))
	}
	if err != nil {
		return nil, errors.Join(err, unlogged)
	}
	if unlogged != nil {
		r.Notes = append(r.Notes, AuditNote+unlogged.Error())
	}
	r.Notes = append(slices.Clip(r.Notes), said...)
	const mb = float64(sandbox.MiB)
	return &CommandResult{
		ExitCode: r.ExitCode(), ProgramExitCode: r.ProgramExitCode(), Stdout: string(r.Stdout.Bytes()), Stderr: string(r.Stderr.Bytes()),
		Duration: r.Metrics.WallTime.Duration(), Error: language.VerdictError(r), Notes: r.Notes,
		ResourceUsage: ResourceStats{
			CPUUsagePercent: r.Metrics.CPUPercent, MemoryUsageMB: float64(r.Metrics.MemoryPeak) / mb, MaxMemoryMB: float64(r.Limits.Memory) / mb,
		},
	}, nil
}

func (config SandboxConfig) spec(files []MountedFile, m sandbox.Machine) (sandbox.Spec, []sandbox.File, error) {
	limits := sandbox.Limits{Wall: config.Timeout}
	if config.CPULimit != "" {
		cores, err := strconv.ParseFloat(config.CPULimit, 64)
		if err != nil || !(cores > 0) {
			return sandbox.Spec{}, nil, sandbox.Invalid("cpus", "%q is not a number of cores", config.CPULimit)
		}
		limits.CPUs = cores
	}
	if config.MemoryLimit != "" {
		memory, err := sandbox.ParseSize(config.MemoryLimit)
		if err != nil || memory == 0 {
			return sandbox.Spec{}, nil, sandbox.Invalid("memory", "%q is not a size; write it like 512m or 2g", config.MemoryLimit)
		}
		limits.Memory = memory
	}
	defaults, _ := sandbox.Limits{Wall: commandTimeout, Memory: commandMemory, CPUs: 1}.Clamp(m)
	spec := sandbox.Spec{Limits: limits.Or(defaults), Workdir: config.Workdir}
	dir := cmp.Or(spec.Workdir, sandbox.WorkspaceDir)
	if config.Image == "" || len(files) > 0 { // a command without files runs in the image's own working directory
		spec.Workdir = dir
	}
	put := make([]sandbox.File, len(files))
	for i, f := range files {
		p := f.Path
		if !path.IsAbs(p) {
			p = path.Join(dir, p)
		}
		put[i] = sandbox.File{Path: p, Mode: fs.FileMode(f.Mode), Data: f.Content}
	}
	return spec, put, nil
}

// HealthCheck runs a command in a sandbox and returns the reason if that fails.
func (c *CodeExecutor) HealthCheck(ctx context.Context) error {
	r, err := c.ExecuteCommand(ctx, "echo healthy", SandboxConfig{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	if r.Error != nil || r.Stdout != "healthy\n" {
		return fmt.Errorf("a command that prints one word printed %q: %w", r.Stdout, errors.Join(r.Error, errors.New("unhealthy")))
	}
	return nil
}
