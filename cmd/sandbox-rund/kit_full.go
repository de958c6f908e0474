//go:build !thin

package main

// See cmd/sandbox-run: without the tag thin this executable contains the kit, and `go run` needs no other.
import _ "github.com/sandbox-run/sandbox-run/pkg/executor/kit"
