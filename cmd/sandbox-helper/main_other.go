//go:build !linux

// Command sandbox-helper runs in containers, which are Linux's: build it with GOOS=linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "sandbox-helper: it runs inside Linux containers only; build it with GOOS=linux")
	os.Exit(126)
}
