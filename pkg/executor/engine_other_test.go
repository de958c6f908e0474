//go:build !linux

package executor

import "testing"

func runTests(m *testing.M) int { return m.Run() }
