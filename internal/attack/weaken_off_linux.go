//go:build !weaken

package attack

// weakenCases are the cases that an executable with the build tag weaken carries out (package weaken); nil is all.
func weakenCases() []string { return nil }
