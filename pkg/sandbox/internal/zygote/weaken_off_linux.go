//go:build !weaken

package zygote

// With the build tag weaken these take walls of forks down, for tests (package weaken).
const weakenKeyring, weakenFilter = false, false
