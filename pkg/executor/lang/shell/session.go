package shell

import (
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/shell/session"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// planSession plans a session, whose driver is a script for bash.
func planSession(j *language.Job) error {
	which, err := whichShell(j)
	if err != nil {
		return err
	}
	if which != "bash" {
		return sandbox.Errorf(sandbox.ErrUnsupported, "lang", "install bash, or --lang bash",
			"a session needs bash; the shell would be %s", which)
	}
	showCommands(j)
	bash := j.Tool.Programs[which]
	if bash != j.Tool.Path {
		j.Plan.Version = "" // the version belongs to another shell; this one was not queried
	}
	session.Add(j, bash)
	return nil
}
