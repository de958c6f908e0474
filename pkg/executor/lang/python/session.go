package python

import (
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/session"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// planSession plans a session. The project's modules stay importable when a cell has changed the directory; warm starts and the hook for line
// buffering are not for drivers.
func planSession(j *language.Job) error {
	j.SetToolEnv()
	j.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	program, _ := setUp(j)
	var dirs []string
	if len(j.Files) > 0 {
		dirs = append(dirs, sourceDir(j))
	}
	joinPath(j, append(dirs, showPackages(j, program)...))
	session.Add(j, program)
	return nil
}
