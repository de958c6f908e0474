//go:build !windows

package cli

import "syscall"

// replace makes another executable of this process. Every descriptor that we were given is still open in it. It returns only if it fails.
func replace(path string, args, env []string) (int, error) {
	lastWords()
	return 0, syscall.Exec(path, args, env)
}
