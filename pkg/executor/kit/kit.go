// Package kit makes a program able to be the kit: our tools that handle untrusted input with large libraries (esbuild, SQLite), and
// therefore run inside the sandbox, with its isolation and limits.
//
// What. A program that imports this package is `sandbox-kit` when its argv[0] has that name; its main needs no code for it. The tools are
// in the packages below: typescript, sqlite, postgres, maven; session is what drivers of sessions share; command is their command line.
//
// Place in the flow. The executor shows the kit's executable (kitpath.Find) inside the sandbox, read-only, and runs it as a phase like
// any other program. cmd/sandbox-kit is nothing but the kit. cmd/sandbox-run links it unless it is built with the tag thin, so that `go
// run` needs no second executable.
//
// Lifecycle. The initialiser either does nothing or runs the tool and ends the process.
//
// Concurrency. None.
//
// Limits. Linking it costs each start of a program about a millisecond, so the thin executable does not.
//
// Exit statuses: 0 done; 1 the user's program failed or is wrong; 2 usage; 65 SQL that can not be parsed (the verdict compile_error); 70
// the kit itself failed.
package kit

import (
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/command"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
)

func init() {
	kitpath.Linked = true
	if len(os.Args) > 0 && filepath.Base(os.Args[0]) == kitpath.Name {
		os.Exit(command.Main())
	}
}
