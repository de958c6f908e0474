//go:build !linux

package conformance

// host is empty: the sandboxes are on another machine.
type host struct{}

func lookAtHost(string) host        { return host{} }
func (host) groups() []string       { return nil }
func (host) left([]string) []string { return nil }
func marked(string) []string        { return nil }
func threadsOf(int) []string        { return nil }

// Marked lists the running processes that have a mark in their environment or command line.
func Marked(string) []string { return nil }

func open() int { return 0 }

func ourMounts() map[string]bool { return nil }

func registrationsOf(int) []string { return nil }
func leftOf([]string) []string     { return nil }

func groupsOf([]string) []string            { return nil }
func inhabitants([]string) ([]string, bool) { return nil, true }

// Left lists the leftovers of supervisors, by the names they were registered under.
func Left([]string) []string { return nil }

func registered() []string { return nil }

func rights() []string { return nil }
