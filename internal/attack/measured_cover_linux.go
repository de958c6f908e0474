//go:build linux && cover

package attack

// measured says that this build counts what it runs.
const measured = true
