package command

import (
	"errors"
	"flag"
	"fmt"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/postgres"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

func runPostgres(flags *flag.FlagSet, args []string, s Streams) int {
	o := postgres.Options{In: s.In, Out: s.Out, Err: s.Err}
	flags.StringVar(&o.Bin, "bin", "", "")
	flags.StringVar(&o.Template, "template", "", "")
	flags.StringVar(&o.Tables, "tables", "", "")
	waits := flags.Bool("wait", false, "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if o.Bin == "" || o.Template == "" || *waits && flags.NArg() > 0 {
		flags.Usage()
		return statusUsage
	}
	o.Files = flags.Args()
	if *waits {
		o.Await = func() ([]string, error) {
			o, err := wait(nil, s)
			if err != nil {
				return nil, err
			}
			args, err := o.become()
			if err != nil {
				return nil, err
			}
			if len(args) < 1 || flags.Parse(args[1:]) != nil { // without the tool's name
				return nil, fmt.Errorf("read order: not for PostgreSQL: %q", args)
			}
			return flags.Args(), nil
		}
	}
	switch err := postgres.Run(o); {
	case errors.Is(err, postgres.ErrSyntax):
		return statusSyntax
	case errors.Is(err, postgres.ErrFailed):
		return statusFailed
	case err != nil:
		return internal(s, err)
	}
	return statusOK
}

// runPostgresSession serves a session.
func runPostgresSession(flags *flag.FlagSet, args []string, s Streams) int {
	o := postgres.Options{Out: s.Out, Err: s.Err}
	flags.StringVar(&o.Bin, "bin", "", "")
	flags.StringVar(&o.Template, "template", "", "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if o.Bin == "" || o.Template == "" || flags.NArg() > 0 {
		flags.Usage()
		return statusUsage
	}
	conn, err := session.Connect()
	if err != nil {
		return internal(s, err)
	}
	interpreter, err := postgres.OpenSession(o)
	if err != nil {
		return internal(s, err)
	}
	defer interpreter.Close()
	version := interpreter.Version()
	ready := protocol.Ready{Language: "postgres", Version: version, Banner: "PostgreSQL " + version}
	if err := session.Serve(conn, ready, interpreter); err != nil {
		return internal(s, err)
	}
	return statusOK
}

func runPostgresTemplate(flags *flag.FlagSet, args []string, s Streams) int {
	var bin, out string
	flags.StringVar(&bin, "bin", "", "")
	flags.StringVar(&out, "out", "", "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if bin == "" || out == "" || flags.NArg() > 0 {
		flags.Usage()
		return statusUsage
	}
	if err := postgres.Make(bin, out); err != nil {
		return internal(s, err)
	}
	return statusOK
}
