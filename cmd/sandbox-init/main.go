//go:build linux

// Command sandbox-init is the first process of a native sandbox. It is started by sandbox-run and
// refuses to run by hand.
package main

import "github.com/sandbox-run/sandbox-run/internal/linux/initproc"

func init() { initproc.Main(exit) } // not main: see there

func main() {}
