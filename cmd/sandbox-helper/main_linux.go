// Command sandbox-helper is the first process of a container of the docker backend. It is started by the daemon for sandbox-run,
// and refuses to run by hand.
package main

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/helper"
)

func main() { os.Exit(helper.Main()) }
