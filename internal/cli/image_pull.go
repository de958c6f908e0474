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

// withPulledImage calls do and, if do fails because an image is missing, downloads the image and calls do again. It downloads only with
// --pull, or after the user has confirmed. pause is called before the download.
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

// confirmPull asks the user whether to download the image. Without a terminal the answer is no.
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

// readAnswer reads a line byte by byte: the input after it belongs to the program.
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

// pullTimeout is how long a cancelled download may take to clean up before it is killed.
const pullTimeout = 10 * time.Second

// pullImage runs the full executable to download an image. Its output goes to standard error, because standard output is the program's.
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
