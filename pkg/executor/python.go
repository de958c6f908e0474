package executor

import (
	"bytes"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var python = Language{
	Name: "python", Title: "Python", Aliases: []string{"py", "python3"},
	Extensions: []string{".py"}, Interpreters: []string{"python"},
	Source: "main.py", Mains: []string{"__main__.py", "main.py", "app.py"},
	Toolchain: "python", Options: []string{"forbid-imports"},
	plan: planPython,
}

func planPython(j *job) error {
	j.env("PYTHONDONTWRITEBYTECODE", "1") // nobody reads what would be written
	j.env("PYTHONUNBUFFERED", "1")        // what it prints is seen when it prints it
	entry := j.inside(j.entry)
	run := j.run(j.tool.Path, entry)
	run.Suspect = func(stderr []byte) bool {
		return bytes.Contains(stderr, []byte("SyntaxError")) || bytes.Contains(stderr, []byte("IndentationError")) || bytes.Contains(stderr, []byte("TabError"))
	}
	run.Check = &sandbox.Process{Args: []string{j.tool.Path, "-c", "import ast,sys; ast.parse(open(sys.argv[1],'rb').read(), sys.argv[1])", entry}}
	return nil
}
