//go:build !linux

package sandbox

import "os"

// openUnnamed makes a file that is removed at once, or where that is not possible (Windows) when it is closed.
func openUnnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".sandbox-run-output-")
	if err == nil {
		_ = os.Remove(f.Name())
	}
	return f, err
}

func closeUnnamed(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name()) // gone already, except on Windows
}
