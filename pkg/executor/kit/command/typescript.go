package command

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/typescript"
)

func runTypeScript(flags *flag.FlagSet, args []string, s Streams) int {
	var o typescript.Options
	flags.StringVar(&o.Entry, "entry", "", "")
	flags.StringVar(&o.Out, "out", "", "")
	flags.StringVar(&o.TSConfig, "tsconfig", "", "")
	flags.BoolVar(&o.Disposable, "disposable", false, "") // internal: see runDisposable
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if o.Entry == "" || o.Out == "" || flags.NArg() > 0 {
		flags.Usage()
		return statusUsage
	}
	dir, err := os.Getwd()
	if err != nil {
		return internal(s, err)
	}
	o.Dir = dir
	if o.Disposable {
		debug.SetMaxStack(mostStack)
	}
	warnings, err := typescript.Build(o)
	var failure *typescript.Failure
	switch {
	case errors.Is(err, typescript.ErrLarge):
		return runDisposable(append([]string{"typescript", "--disposable"}, args...), s)
	case errors.As(err, &failure):
		fmt.Fprint(s.Err, failure.Text)
		return statusFailed
	case err != nil:
		return internal(s, err)
	}
	fmt.Fprint(s.Err, warnings)
	return statusOK
}

// runTypeScriptCells compiles the cells of a session, which asks on standard input. A cell that is nested too deeply ends the process; the
// session starts another.
func runTypeScriptCells(flags *flag.FlagSet, args []string, s Streams) int {
	if flags.Parse(args) != nil {
		return statusUsage
	}
	dir, err := os.Getwd()
	if err != nil {
		return internal(s, err)
	}
	debug.SetMaxStack(mostStack)
	if err := typescript.ServeCells(dir, s.In, s.Out); err != nil {
		return internal(s, err)
	}
	return statusOK
}

// mostStack ends a disposable process before the sandbox's memory limit does, which has a less precise message.
const mostStack = 128 << 20

// runDisposable runs the kit in a child process, because Go can not recover from a full stack, and reports a crash.
func runDisposable(args []string, s Streams) int {
	self, err := os.Executable()
	if err != nil {
		return internal(s, err)
	}
	said := &head{}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = kitpath.Name
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, said
	err = cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		return internal(s, err)
	}
	crashed := bytes.HasPrefix(said.kept, []byte("runtime: ")) || bytes.HasPrefix(said.kept, []byte("fatal error: "))
	if status := cmd.ProcessState.ExitCode(); status >= 0 && !crashed {
		fmt.Fprint(s.Err, string(said.kept))
		return status
	}
	fmt.Fprintf(s.Err, "error: the program is nested too deeply, or too large, for the compiler (%s)\n", cmd.ProcessState)
	return statusFailed
}

// head keeps the beginning of its input.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	const most = 1 << 20
	h.kept = append(h.kept, p[:min(len(p), most-len(h.kept))]...)
	return len(p), nil
}
