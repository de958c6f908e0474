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

// providing does something that may find out that an image is not here. If its user wants that, the image is got, and it is
// done once more. Nothing is ever downloaded that nobody has asked for: --pull asks, and so does a person who says yes.
func (c *cli) providing(ctx context.Context, o *boxOptions, pause func(), do func() error) error {
	err := do()
	var none *executor.NoImage
	if !errors.As(err, &none) || none.Get() == nil {
		return err
	}
	pause()
	if !o.pull && !c.agreed(o, none) {
		return err
	}
	if got := c.get(ctx, none); got != nil {
		return got
	}
	return do()
}

// agreed asks a person. Where there is none the answer is no.
func (c *cli) agreed(o *boxOptions, none *executor.NoImage) bool {
	if c.format != formatText || o.quiet || !isTerminal(c.std.in) || !isTerminal(c.std.err) {
		return false
	}
	if none.Missing != nil {
		first, _, _ := strings.Cut(none.Missing.Error(), "\n")
		fmt.Fprintf(c.std.err, "%s\n", escaped(first))
	}
	fmt.Fprintf(c.std.err, "The image %s is not here. Run this now?\n  %s\n[y/N] ", escaped(none.Reference), escaped(none.How()))
	switch strings.ToLower(strings.TrimSpace(c.answer())) {
	case "y", "yes":
		return true
	}
	return false
}

// answer reads a line, byte by byte: what follows is the program's.
func (c *cli) answer() string {
	var line []byte
	for b := make([]byte, 1); len(line) < 64; {
		n, err := c.std.in.Read(b)
		if n == 0 || err != nil || b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return string(line)
}

// getPatience is how long a command that was told to end may take to put its things away.
const getPatience = 10 * time.Second

// get has the full executable get an image. What it says is not the program's output.
func (c *cli) get(ctx context.Context, none *executor.NoImage) error {
	path, err := findFull()
	if c.full != nil {
		path, err = os.Executable()
	}
	if err != nil {
		return &sandbox.Error{Op: "image " + none.Reference, Kind: sandbox.ErrUnsupported, Err: err, Hint: c.howToGet()}
	}
	cmd := exec.CommandContext(ctx, path, none.Get()...)
	cmd.Stdout, cmd.Stderr = c.std.err, c.std.err
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = getPatience
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &sandbox.Error{Op: "image " + none.Reference, Err: fmt.Errorf("%s: %w", none.How(), err)}
	}
	return nil
}
