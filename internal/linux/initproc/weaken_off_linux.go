//go:build !weaken

package initproc

// With the build tag weaken these remove controls, for tests (package weaken).

// hidepid is the option of /proc that hides the processes of other users from programs.
const hidepid = "invisible"

func weakenRoot() {}

func weakenStarted() {}
