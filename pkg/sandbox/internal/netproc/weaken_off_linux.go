//go:build !weaken

package netproc

func weakenEnvironment() []string { return nil }
