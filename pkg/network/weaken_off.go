//go:build !weaken

package network

// Test builds (package weaken) leave out these checks.
const (
	weakenRules   = false
	weakenPrivate = false
)
