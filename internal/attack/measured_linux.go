//go:build linux && !cover

package attack

// measured reports whether this build measures coverage.
const measured = false
