//go:build !linux

package postgres

import "errors"

// Run is for Linux, where sandboxes are.
func Run(Options) error { return errors.New("PostgreSQL is run inside Linux sandboxes only") }
