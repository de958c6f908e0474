package full

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests"
)

func init() { implement("test", (*commands).newTest) }

// Values of --format that only this command has.
const (
	formatJUnit = "junit"
	formatTAP   = "tap"
)

func (c *commands) newTest() *cobra.Command {
	project := &cli.ProjectOptions{}
	o := &tests.Options{}
	verbose := false
	cmd := &cobra.Command{
		Use: "test [DIR] [flags] [-- ARGUMENT...]",
		Long: `Runs the tests of a project in a fresh sandbox, and reports each of them. The framework is
found by the files: ` + strings.Join(tests.Names(), ", ") + `.
Nothing of the project is executed outside of the sandbox. Arguments after -- are the framework's.

What tests have done is the word of the program that runs them. The exit code is also that
of the sandbox: a framework that fails or does not reach its end never counts as passed.`,
		Example: `  sandbox-run test
  sandbox-run test project --filter login --fail-fast
  sandbox-run test --timeout 10s --rerun-failed
  sandbox-run test --format junit > report.xml
  sandbox-run test --json | jq '.tests[] | select(.status != "passed")'

Exit codes:
  0    all tests passed                 2    usage, or no tests are found
  1    tests failed, or do not compile  125  sandbox-run itself failed
  124  time limit of the run            126  refused by policy
  137  memory limit, or SIGKILL         127  the language is not installed
  130, 143  cancelled: Ctrl-C, SIGTERM`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			words, rest := args, []string(nil)
			if n := cmd.Flags().ArgsLenAtDash(); n >= 0 {
				words, rest = args[:n], args[n:]
			}
			if len(words) > 1 {
				return &sandbox.Error{Op: "test", Kind: sandbox.ErrInvalid, Hint: "-- " + words[1] + ", if it is an argument of the framework",
					Err: fmt.Errorf("unexpected argument %q", words[1])}
			}
			dir := "."
			if len(words) == 1 {
				dir = words[0]
			}
			err := project.Read(c.Invocation, cmd.Flags(), dir, rest)
			if err == nil {
				err = c.runTests(project, o, verbose)
			}
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	project.AddTo(cmd, c.Invocation, func(fs *pflag.FlagSet) {
		fs.StringVar(&o.Framework, "framework", "", "`name` of the framework (default found by the files): "+strings.Join(tests.Names(), ", "))
		fs.StringVar(&o.Filter, "filter", "", "run only tests that match a `pattern`, as the framework's own filter takes it")
		cli.AddParsed(fs, &o.TestTimeout, "timeout", "", "`duration` that one test may take (default any)", readTestTimeout)
		cli.Annotate(fs.Lookup("timeout"), cli.NoVariable, "true") // that of other commands is the limit of the whole run
		fs.BoolVar(&o.FailFast, "fail-fast", false, "end at the first test that fails")
		fs.BoolVar(&o.RerunFailed, "rerun-failed", false, "run failed tests once more; one that then passes is flaky, and does not fail the run")
		fs.IntVar(&o.Repeat, "repeat", 1, "run all tests that `number` of times, each time in a fresh sandbox; a test that differs is flaky")
		fs.BoolVarP(&verbose, "verbose", "v", false, "print what the tests print, and those that pass")
	}, cli.FormatText, cli.FormatJSON, cli.FormatNDJSON, formatJUnit, formatTAP)
	return cmd
}

func readTestTimeout(text string) (time.Duration, error) {
	var l sandbox.Limits
	if err := sandbox.FindLimit("timeout").Parse(&l, text); err != nil {
		return 0, err
	}
	if l.Wall <= 0 {
		return 0, errors.New("it must be more than 0")
	}
	return l.Wall, nil
}

// runTests runs the tests, prints their results, and sets c.Code.
func (c *commands) runTests(project *cli.ProjectOptions, o *tests.Options, verbose bool) error {
	req := project.Request()
	if err := tests.Prepare(&req, o); err != nil {
		return err
	}
	show := c.newTestPrinter(verbose)
	return c.RunProject(project, show.prepare, func(p *cli.ProjectRun) error {
		req.OnEvent = show.output
		show.stop = p.Stop
		show.begin()
		r, err := tests.Run(p.Context, p.Executor, req, *o, show.test)
		show.end()
		if err != nil {
			return err
		}
		defer r.Close()
		r.NameSignal(p.Context)
		r.Notes = append(r.Notes, p.Notes...)
		c.Code = r.ExitCode()
		return show.conclude(r)
	})
}
