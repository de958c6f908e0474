//go:build !thin

package main

// Without the tag thin this executable contains the kit, and `go run` needs no other. With the tag it starts faster.
import _ "github.com/sandbox-run/sandbox-run/pkg/executor/kit"
