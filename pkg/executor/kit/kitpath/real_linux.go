package kitpath

import (
	"os"
	"strconv"
)

// real resolves a path by the kernel: the path of a volume's source may have no symlinks.
func real(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
