package shell

import (
	"path"
	"regexp"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// batsFormat is a formatter of bats that passes on all that formatters are told.
const batsFormat = "#!/bin/sh\nexec cat\n"

// noBats runs the tests if bats is there.
const noBats = `command -v bats >/dev/null || { echo "bats is not installed; try: apt install bats" >&2; exit 127; }
exec bats "$@"`

// addTests adds the run of bats: of all files *.bats, or of those of the entry.
func addTests(j *language.Job) error {
	args := []string{"--recursive"}
	if asked := j.Request.Tests; asked != nil {
		j.Plan.Framework, j.Plan.Report = "bats", language.ReportTAP
		const formatter = language.TestsDir + "/format.sh"
		j.RunFiles = append(j.RunFiles, sandbox.File{Path: formatter, Mode: 0o755, Data: []byte(batsFormat)})
		args = append(args, "--timing", "--formatter", formatter)
		filter := asked.Filter
		if len(asked.Names) > 0 {
			filter = selectTests(asked.Names)
		}
		if filter != "" {
			args = append(args, "--filter", filter)
		}
	}
	entry := j.Request.Entry
	if len(j.Files) == 1 {
		entry = j.Entry
	}
	// bats has no -- before file names
	run := j.AddRun("/bin/sh", "-c", noBats, "bats")
	run.Process.Args = append(append(run.Process.Args, args...), "./"+path.Clean(entry))
	run.Process.Workdir = j.Dir
	return nil
}

// selectTests returns the pattern of the names of tests; the ids of a report are a file and a name.
func selectTests(ids []string) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		_, name, _ := strings.Cut(id, " > ")
		names[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
