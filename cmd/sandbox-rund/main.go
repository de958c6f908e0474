// Command sandbox-rund has every subcommand of sandbox-run, and the libraries that are slow to start: the HTTP API, image registries, the
// Docker backend and the attack suite. sandbox-run executes it in its own place where it is needed; the command line is the same.
package main

import (
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/cli/full"
)

func main() {
	hostile.Play() // if doctor --attack has started this process as an attacker
	full.Main()
}
