//go:build !weaken

package initproc

// With the build tag weaken these take walls down, for tests (package weaken).

// hidepid is the option of /proc that keeps programs from being told of processes that are not their own.
const hidepid = "invisible"

func weakenRoot() {}

func weakenStarted() {}
