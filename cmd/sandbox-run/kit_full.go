//go:build !thin

package main

// Without the tag thin this executable is the kit, too, and `go run` needs no other. With it, it starts faster.
import _ "github.com/sandbox-run/sandbox-run/pkg/executor/kit"
