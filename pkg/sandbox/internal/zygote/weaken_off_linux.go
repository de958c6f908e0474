//go:build !weaken

package zygote

// With the build tag weaken these remove controls of forks, for tests (package weaken).
const weakenKeyring, weakenFilter = false, false
