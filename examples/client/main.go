// Command client runs a program on a running server (sandbox-run serve) and shows its output while it runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	transport := &client.Unix{Path: wire.DefaultSocket()}
	defer transport.Close()
	server := client.New(transport)
	for event, err := range server.Stream(ctx, &wire.Run{
		Language: "python",
		Code:     "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)",
		Stdin:    "olleh\ndlrow\n",
		Limits:   sandbox.Limits{Wall: 10 * time.Second},
	}) {
		var problem *client.Problem
		switch {
		case errors.As(err, &problem):
			return fmt.Errorf("the server refused the run (%s): %w", problem.Code, err)
		case err != nil:
			return err
		case event.Kind == sandbox.EventStdout:
			fmt.Print(string(event.Data))
		case event.Result != nil:
			fmt.Println(event.Result.Verdict, event.Result.Isolation.Tier)
		}
	}
	return nil
}
