// Command sandbox-kit holds the tools that sandbox-run runs inside its sandboxes: it compiles TypeScript and executes SQL.
// It is started by sandbox-run.
package main

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/command"
)

func main() {
	os.Exit(command.Main())
}
