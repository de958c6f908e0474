// Command sandbox-net is the network of a sandbox: a TCP/IP stack in user mode that connects what the policy allows. sandbox-run starts
// it, and it then runs in the initialiser of package stack; started by hand, it refuses to run.
package main

import (
	"fmt"
	"os"

	_ "github.com/sandbox-run/sandbox-run/pkg/network/stack"
)

func main() {
	fmt.Fprintln(os.Stderr, "sandbox-net is started by sandbox-run, for the network of a sandbox")
	os.Exit(2)
}
