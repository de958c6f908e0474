package command

import (
	"context"
	"flag"
	"fmt"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/maven"
)

func runMaven(flags *flag.FlagSet, args []string, s Streams) int {
	var o maven.Options
	flags.StringVar(&o.Index, "index", "", "")
	flags.StringVar(&o.Out, "out", "", "")
	flags.StringVar(&o.Report, "report", "", "")
	flags.StringVar(&o.Lock, "lock", "", "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	o.Coordinates = flags.Args()
	if o.Index == "" || o.Out == "" || o.Report == "" || (o.Lock == "") == (len(o.Coordinates) == 0) {
		flags.Usage()
		return statusUsage
	}
	if err := maven.Run(context.Background(), o); err != nil {
		fmt.Fprintln(s.Err, "error:", err)
		return statusFailed
	}
	return statusOK
}
