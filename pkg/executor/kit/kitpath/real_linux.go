package kitpath

import (
	"os"
	"strconv"
)

// real asks the kernel what a path leads to: a volume's source may not lead through symlinks.
func real(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
