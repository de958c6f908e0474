package rust

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// runner starts the test programs of cargo, and has them write a report.
//
//go:embed runner.sh
var runner []byte

// reportTests has the tests of a project write a report, and returns the flags and arguments of cargo test for the tests that the request
// selects. Cargo starts each test program by the runner that env names.
func reportTests(j *language.Job, env map[string]string) (flags, args []string) {
	asked := j.Request.Tests
	j.Plan.Framework, j.Plan.Report = "cargo test", language.ReportLibtest
	const file = language.TestsDir + "/runner.sh"
	j.RunFiles = append(j.RunFiles, sandbox.File{Path: file, Mode: 0o644, Data: runner})
	flags = []string{"--config", `target.'cfg(all())'.runner=["/bin/sh","` + file + `"]`}
	if !asked.FailFast {
		flags = append(flags, "--no-fail-fast")
	}
	args = slices.Clone(j.Request.Args)
	if !slices.Contains(args, "--") {
		args = append([]string{"--"}, args...)
	}
	if asked.Filter != "" {
		args = append(args, asked.Filter)
	}
	for _, name := range asked.Names { // the suite, and the name
		args = append(args, name[strings.LastIndexByte(name, ' ')+1:])
	}
	if len(asked.Names) > 0 {
		args = append(args, "--exact")
	}
	return flags, args
}
