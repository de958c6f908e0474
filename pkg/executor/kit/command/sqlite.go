package command

import (
	"errors"
	"flag"
	"fmt"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/session"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/sqlite"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

func runSQLite(flags *flag.FlagSet, args []string, s Streams) int {
	o := sqlite.Options{In: s.In, Out: s.Out}
	flags.StringVar(&o.Database, "db", "", "")
	flags.StringVar(&o.Data, "data", ".", "")
	flags.StringVar(&o.Tables, "tables", "", "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	o.Files = flags.Args()
	err := sqlite.Run(o)
	var script *sqlite.ScriptError
	switch {
	case errors.As(err, &script):
		fmt.Fprintln(s.Err, err)
		switch {
		case script.Syntax:
			return statusSyntax
		case script.NoDisk:
			return statusNoDisk
		}
		return statusFailed
	case err != nil:
		return internal(s, err)
	}
	return statusOK
}

// runSQLiteSession serves a session.
func runSQLiteSession(flags *flag.FlagSet, args []string, s Streams) int {
	o := sqlite.Options{Out: s.Out}
	flags.StringVar(&o.Database, "db", "", "")
	flags.StringVar(&o.Data, "data", ".", "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if flags.NArg() > 0 {
		flags.Usage()
		return statusUsage
	}
	conn, err := session.Connect()
	if err != nil {
		return internal(s, err)
	}
	interpreter, err := sqlite.OpenSession(o, s.Err)
	if err != nil {
		fmt.Fprintln(s.Err, err)
		return statusFailed
	}
	defer interpreter.Close()
	if err := session.Serve(conn, protocol.Ready{Language: "sql", Version: sqlite.Version(), Banner: "SQLite " + sqlite.Version()},
		interpreter); err != nil {
		return internal(s, err)
	}
	return statusOK
}
