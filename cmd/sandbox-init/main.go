//go:build linux

// Command sandbox-init is the first process of a native sandbox. sandbox-run starts it; it
// refuses to run by hand.
package main

import "github.com/sandbox-run/sandbox-run/internal/linux/initproc"

func init() { initproc.Main(exit) } // not in main: see initproc.Main

func main() {}
