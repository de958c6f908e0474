// Command sandbox-net is the network of a sandbox: a TCP/IP stack in user mode that connects what the policy allows. sandbox-run
// starts it; it refuses to run by hand.
package main

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/network/stack"
)

func main() { os.Exit(stack.Main()) }
