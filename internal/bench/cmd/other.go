//go:build !linux

package main

import (
	"context"
	"errors"
	"io"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

func isProbe([]string) bool { return false }

func probe([]string, io.Writer) int { return exitFailed }

func measure(context.Context, *options, io.Writer) (*bench.Report, error) {
	return nil, errors.New("the native backend, and so its benchmark, needs Linux")
}
