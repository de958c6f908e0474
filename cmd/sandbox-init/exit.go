//go:build linux && !cover

package main

import "syscall"

// exit is not os.Exit: package os alone would make this program slower to start by a tenth.
var exit = syscall.Exit
