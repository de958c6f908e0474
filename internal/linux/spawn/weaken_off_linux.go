//go:build !weaken

package spawn

import "github.com/sandbox-run/sandbox-run/internal/linux/initproto"

// With the build tag weaken these remove controls, for tests (package weaken). Without it they do nothing.

func weakenStart(*Options) []string { return nil }

func weakenSetup(_ *initproto.Setup, files []int) []int { return files }

func weakenExec(_ *initproto.Exec, files []int) []int { return files }

func weakenExpect(*initproto.Expect) {}

// measures reports whether programs are measured before they run; without the tag it is always true.
func measures() bool { return true }
