//go:build !unix

package toolchain

import "os"

func openOwn(p string) (*os.File, error) { return os.Open(p) }
