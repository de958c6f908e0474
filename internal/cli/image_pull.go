package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// withPulledImage does something that may find out that an image is not here. If its user wants that, the image is got, and it is
// done once more. An image is downloaded only on request: by --pull, or by a user who answers yes.
func (c *Invocation) withPulledImage(ctx context.Context, o *boxOptions, pause func(), do func() error) error {
	err := do()
	var none *executor.NoImage
	if !errors.As(err, &none) || none.Get() == nil {
		return err
	}
	pause()
	if !o.pull && !c.confirmPull(o, none) {
		return err
	}
	if got := c.pullImage(ctx, none); got != nil {
		return got
	}
	return do()
}

// confirmPull asks a person. Where there is none the answer is no.
func (c *Invocation) confirmPull(o *boxOptions, none *executor.NoImage) bool {
	if c.format != FormatText || o.quiet || !IsTerminal(c.Std.In) || !IsTerminal(c.Std.Err) {
		return false
	}
	if none.Missing != nil {
		first, _, _ := strings.Cut(none.Missing.Error(), "\n")
		fmt.Fprintf(c.Std.Err, "%s\n", EscapeText(first))
	}
	fmt.Fprintf(c.Std.Err, "The image %s is not here. Run this now?\n  %s\n[y/N] ", EscapeText(none.Reference), EscapeText(none.How()))
	switch strings.ToLower(strings.TrimSpace(c.readAnswer())) {
	case "y", "yes":
		return true
	}
	return false
}

// readAnswer reads a line, byte by byte: what follows is the program's.
func (c *Invocation) readAnswer() string {
	var line []byte
	for b := make([]byte, 1); len(line) < 64; {
		n, err := c.Std.In.Read(b)
		if n == 0 || err != nil || b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return string(line)
}

// pullTimeout is how long a command that was told to end may take to put its things away.
const pullTimeout = 10 * time.Second

// pullImage has the full executable get an image. What it says is not the program's output.
func (c *Invocation) pullImage(ctx context.Context, none *executor.NoImage) error {
	path, err := findFull()
	if c.full != nil {
		path, err = os.Executable()
	}
	if err != nil {
		return &sandbox.Error{Op: "image " + none.Reference, Kind: sandbox.ErrUnsupported, Err: err, Hint: c.fullHint()}
	}
	cmd := exec.CommandContext(ctx, path, none.Get()...)
	cmd.Stdout, cmd.Stderr = c.Std.Err, c.Std.Err
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = pullTimeout
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &sandbox.Error{Op: "image " + none.Reference, Err: fmt.Errorf("%s: %w", none.How(), err)}
	}
	return nil
}
