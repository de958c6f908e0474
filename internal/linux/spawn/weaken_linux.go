package spawn

import "github.com/sandbox-run/sandbox-run/internal/linux/initproto"

// Weaken is for tests only, and empty everywhere else: they take a wall down on its way to the init, to see that
// the attack suite notices. Each function changes what is about to be used; those with descriptors return them,
// perhaps with more. (A test of this package sees to it that no other code says its name.)
var Weaken struct {
	Start func(*Options)
	Setup func(m *initproto.Setup, files []int) []int
	Exec  func(m *initproto.Exec, files []int) []int
	// Unmeasured starts programs without looking at them, which would end what was weakened.
	Unmeasured bool
}
