//go:build !thin

package main

// Without the tag thin this executable contains the network's process, as it contains the kit.
import _ "github.com/sandbox-run/sandbox-run/pkg/network/stack"
