//go:build !weaken

package initproc

// With the build tag weaken these are others, for tests (package weaken).
const (
	dumpable = 0           // the init: its memory is not to be read by the program's id
	hidepid  = "invisible" // of /proc: a program is not told of processes that are not its own
)

func weakenRoot() {}
