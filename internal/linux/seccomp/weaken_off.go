//go:build !weaken

package seccomp

// With the build tag weaken these functions allow what the policy refuses, for tests (package weaken).

func weakenRule(_ string, r rule) rule { return r }

func weakenSocket(steps []step) []step { return steps }
