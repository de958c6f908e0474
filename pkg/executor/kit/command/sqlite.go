package command

import (
	"errors"
	"flag"
	"fmt"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/sqlite"
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
