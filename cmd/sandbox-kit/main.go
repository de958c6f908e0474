// Command sandbox-kit contains the tools that run inside sandboxes: it compiles TypeScript and executes SQL.
// sandbox-run starts it.
package main

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/command"
)

func main() {
	os.Exit(command.Main())
}
