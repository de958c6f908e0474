//go:build !linux

// Command sandbox-net is the network of a sandbox. It runs on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "sandbox-net runs on Linux only")
	os.Exit(2)
}
