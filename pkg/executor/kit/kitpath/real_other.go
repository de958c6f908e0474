//go:build !linux

package kitpath

import "path/filepath"

// real only makes the path absolute: sandboxes on other systems are containers, which copy the file.
func real(path string) (string, error) { return filepath.Abs(path) }
