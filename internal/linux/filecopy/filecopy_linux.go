// Package filecopy copies open files within the kernel.
//
// Place in the flow. Roots, the init's executable and files for the sandbox are copied before it can start; copying them
// through user memory, page by page, would delay the start noticeably.
package filecopy

import "golang.org/x/sys/unix"

// Within copies the rest of one open file to another, at most the given number of bytes, and returns the number copied.
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
