package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// signalCause is the signal that cancelled a run.
type signalCause syscall.Signal

func (s signalCause) Error() string {
	name := map[syscall.Signal]string{syscall.SIGINT: "Ctrl-C", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT"}[syscall.Signal(s)]
	return "cancelled by " + name
}

// onSignals ends a run in three steps: the first SIGINT, SIGTERM, SIGHUP or SIGQUIT cancels the context,
// which ends the program gracefully; the second calls kill; the third ends us, and the sandbox
// with us, in case something is stuck. Cancelling with any cause ends the listening too.
func onSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	// With a reader of SIGPIPE, writing to a closed pipe is an error like any other; without one
	// it would end us with the sandbox still standing. Nobody needs to read the channel.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	signals := make(chan os.Signal, 3)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // nohup, and background jobs of scripts, ask to be left alone
			signal.Notify(signals, s)
		}
	}
	go func() {
		for count := 0; ; {
			s, ok := (<-signals).(syscall.Signal)
			if !ok {
				continue
			}
			switch count++; count {
			case 1:
				cancel(signalCause(s))
			case 2:
				go kill()
			default:
				restoreTerminal()
				os.Exit(codeSignalBase + int(s))
			}
		}
	}()
	return ctx, cancel
}

// onSignals is for a run, which may begin at a server and go on here: there is one listener to a command, and whoever asks again only has another
// kill.
func (c *cli) onSignals(kill func()) (context.Context, context.CancelCauseFunc) {
	c.kill.Store(&kill)
	if c.signalled == nil {
		c.signalled, c.cancel = onSignals(func() { (*c.kill.Load())() })
	}
	return c.signalled, c.cancel
}
