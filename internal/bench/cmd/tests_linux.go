package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
)

// The tests of a project: each computes for some milliseconds, as tests do that have something to test.
const (
	projectTests = 200
	testBody     = "    def test_%03d(self):\n        self.assertGreater(sum(i * i for i in range(%d)), 0)\n"
	testLoops    = 100_000
)

// tests compares the tests of a project with the same runner without a sandbox. Both sides may use both processors.
func (s *environment) tests(ctx context.Context) (_ []bench.Row, err error) {
	dir, err := os.MkdirTemp("", "sandbox-run-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	write := func(number int) error {
		var text strings.Builder
		text.WriteString("import unittest\n\n\nclass T(unittest.TestCase):\n")
		for i := range projectTests {
			fmt.Fprintf(&text, testBody, i, testLoops+number)
		}
		return os.WriteFile(filepath.Join(dir, "test_bench.py"), []byte(text.String()), 0o644)
	}
	const python = "/usr/bin/python3"
	ours := s.program(s.cli, "test", "--cpus", "2", dir)
	ours.env = []string{"SANDBOX_RUN_AUDIT_LOG=off"}
	reference := s.program(python, "-B", "-m", "unittest", "discover", "-s", dir)
	side := func(p *program) bench.Run {
		return func(_ context.Context, number int) (bench.Sample, error) {
			if err := write(number); err != nil {
				return bench.Sample{}, err
			}
			return p.sample()
		}
	}
	a, b, err := bench.Pairs(ctx, min(1, s.warmup), s.probes, side(ours), side(reference))
	if err != nil {
		return nil, err
	}
	row := bench.Compare(fmt.Sprintf("sandbox-run test, %d tests of unittest, the whole command", projectTests), "bare", a, b, 1.1)
	row.Note = "bare: " + python + " -B -m unittest discover"
	return []bench.Row{row}, nil
}
