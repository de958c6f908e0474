// Command sandbox-run runs untrusted code in fresh, limited Linux sandboxes. It is started for every run,
// so what it links is kept small (DESIGN.md, D10); the command line itself is package cli.
package main

import "github.com/sandbox-run/sandbox-run/internal/cli"

func main() { cli.Main() }
