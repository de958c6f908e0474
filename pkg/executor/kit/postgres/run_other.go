//go:build !linux

package postgres

import "errors"

// Run is only for Linux.
func Run(Options) error { return errors.New("postgres: run: it runs inside Linux sandboxes only") }
