//go:build !linux

// Command sandbox-helper runs in Linux containers: build it with GOOS=linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "sandbox-helper: start: it runs inside Linux containers only; build it with GOOS=linux")
	os.Exit(126)
}
