// Package filecopy copies open files within the kernel.
//
// Place in the flow. Roots, the init's own executable and files for the sandbox are copied before it can start; a
// command that makes a single sandbox would notice their way through its memory, page by page.
package filecopy

import "golang.org/x/sys/unix"

// Within copies what is left of one open file to another, at most so many bytes, and says how many it were.
func Within(to, from int, most int64) (copied int64, err error) {
	for copied < most {
		n, err := unix.Sendfile(to, from, nil, int(min(most-copied, 1<<30)))
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
		case err != nil:
			return copied, err
		case n == 0:
			return copied, nil
		default:
			copied += int64(n)
		}
	}
	return copied, nil
}
