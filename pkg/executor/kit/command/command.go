// Package command is the command line of the kit: `sandbox-kit TOOL …`.
//
// What. Run reads the arguments, calls the tool's package, and turns its result into text and an exit status.
//
// Place in the flow. Called by main of cmd/sandbox-kit and by the initialiser of package kit, inside a sandbox.
//
// Lifecycle. One call per process.
//
// Concurrency. None.
//
// Limits. The exit status is the contract with the executor:
//
//	0   done
//	1   the user's program is wrong or failed; the messages are on standard error
//	2   the kit was called wrongly
//	65  SQL that can not be parsed
//	70  the kit itself failed
//	73  SQL that filled the disk
package command

import (
	"flag"
	"fmt"
	"io"
)

// The exit statuses. 65, 70 and 73 are EX_DATAERR, EX_SOFTWARE and EX_CANTCREAT of sysexits.
const (
	statusOK       = 0
	statusFailed   = 1
	statusUsage    = 2
	statusSyntax   = 65
	statusInternal = 70
	statusNoDisk   = 73
)

// Streams are the three standard ones.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// tool is one entry of the table in Run.
type tool struct {
	name, usage string
	run         func(flags *flag.FlagSet, args []string, s Streams) int
}

func tools() []tool {
	return []tool{
		{"typescript", "--entry FILE --out FILE [--tsconfig FILE]", runTypeScript},
		{"typescript-cells", "", runTypeScriptCells},
		{"driver", "--socket DESCRIPTOR COMMAND…", runDriver},
		{"sqlite", "[--db FILE] [--data DIR] [--tables FILE] [FILE.sql…]", runSQLite},
		{"sqlite-session", "[--db FILE] [--data DIR], with the session's socket as standard input", runSQLiteSession},
		{"compiler", "--source FILE -- COMMAND…", runCompiler},
		{"maven", "--index URL --out DIR --report FILE [--lock FILE | COORDINATE…]", runMaven},
		{"pack", "--dir DIR --out FILE", runPack},
		{"postgres", "--bin DIR --template DIR [--tables FILE] [--wait | FILE.sql…]", runPostgres},
		{"postgres-session", "--bin DIR --template DIR, with the session's socket as standard input", runPostgresSession},
		{"postgres-template", "--bin DIR --out DIR", runPostgresTemplate},
	}
}

// Run runs a tool and returns the exit status.
func Run(args []string, s Streams) (status int) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(s.Err, "sandbox-kit: internal error: %v\n", r)
			status = statusInternal
		}
	}()
	if len(args) > 0 {
		for _, t := range tools() {
			if t.name != args[0] {
				continue
			}
			flags := flag.NewFlagSet(t.name, flag.ContinueOnError)
			flags.SetOutput(s.Err)
			flags.Usage = func() { fmt.Fprintf(s.Err, "usage: sandbox-kit %s %s\n", t.name, t.usage) }
			return t.run(flags, args[1:], s)
		}
	}
	fmt.Fprintln(s.Err, "usage: sandbox-kit TOOL …, run inside a sandbox by sandbox-run. The tools:")
	for _, t := range tools() {
		fmt.Fprintf(s.Err, "  %s %s\n", t.name, t.usage)
	}
	return statusUsage
}

// internal reports an error of the kit itself.
func internal(s Streams, err error) int {
	fmt.Fprintf(s.Err, "sandbox-kit: %v\n", err)
	return statusInternal
}
