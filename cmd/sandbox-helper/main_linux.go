// Command sandbox-helper is the first process of a container of the docker backend. The daemon starts it for sandbox-run;
// it refuses to run by hand.
package main

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/helper"
)

func main() { os.Exit(helper.Main()) }
