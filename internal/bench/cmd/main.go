// Command cmd measures sandbox-run against its bars: start-up, throughput, memory and overhead,
// each beside a reference measured in the same minute.
//
// Place in the flow. `make bench` runs it after `make build`; docs/PERFORMANCE.md says how to read
// it, and `-update docs/PERFORMANCE.md` puts the table there. It uses pkg/sandbox as a Go program
// with sandbox-init installed does, and bin/sandbox-run as a shell does. With `-against DIR` the
// executables of an older version are the reference, and only executables are measured.
//
// Lifecycle. All measures share one backend and one manager, which are closed at the end. The
// benchmark checks that it leaves nothing on the machine.
//
// Concurrency. Measures run one after another, because they would disturb each other.
//
// Limits. It needs Linux, root and bubblewrap. It exits with 0 if every bar was met, 1 if one was
// missed, 2 if a measurement failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

const (
	exitMet    = 0
	exitMissed = 1
	exitFailed = 2
)

func main() {
	if isProbe(os.Args) {
		os.Exit(probe(os.Args[2:], os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// leastPairs is the smallest number of pairs for valid figures.
const leastPairs = 60

// options are the flags, and the sizes that -smoke reduces.
type options struct {
	pairs           int // of the latencies
	probes          int // pairs of the overheads
	neighbourRounds int // of five runs beside a neighbour
	traces          int // starts traced for package initialisers
	warmup          int
	rounds          int           // of the throughput, in alternating order
	each            time.Duration // of one throughput in one round
	idle            int           // sandboxes that do nothing
	crowdSize       int           // of those of a server
	overloadFor     time.Duration
	soakFor         time.Duration // 0: no soak
	only            *regexp.Regexp
	bin             string
	against         string // directory of an older version's executables; empty: the references are measured
	json            string
	update          string
	markdown        bool
	smoke           bool
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{probes: 40, neighbourRounds: 24, traces: 25, warmup: 10, rounds: 4, each: time.Second, idle: 50, crowdSize: 500,
		overloadFor: time.Minute}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.pairs, "n", 200, "pairs of each latency, at least 60")
	only := fs.String("only", "", "measure only what `REGEX` matches")
	fs.StringVar(&o.bin, "bin", "bin", "`directory` of sandbox-run and sandbox-init")
	fs.StringVar(&o.against, "against", "", "compare with the executables of an older version in `directory`, row by row")
	fs.StringVar(&o.json, "json", "", "also write the report to `FILE` as JSON")
	fs.StringVar(&o.update, "update", "", "also put the table into the marked section of `FILE`")
	fs.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	fs.DurationVar(&o.soakFor, "soak", 0, "also soak a server in mixed load for a `time`, such as 10m")
	fs.BoolVar(&o.smoke, "smoke", false, "three of everything, to see that it works; bars are not judged")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.against != "" && o.update != "" {
		return nil, errors.New("-against: its rows are not those of the document: -update is refused")
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	switch {
	case o.smoke:
		o.pairs, o.probes, o.neighbourRounds, o.traces, o.warmup, o.rounds, o.each, o.idle = 3, 3, 2, 3, 1, 1, 200*time.Millisecond, 3
		o.crowdSize, o.overloadFor = 3, time.Second
		if o.update != "" {
			return nil, errors.New("-smoke measures no valid figures: -update is refused")
		}
	case o.soakFor < 0:
		return nil, fmt.Errorf("-soak %v: it can not be negative", o.soakFor)
	case o.pairs < leastPairs:
		return nil, fmt.Errorf("-n %d: at least %d pairs are needed for valid figures", o.pairs, leastPairs)
	}
	return o, nil
}

// run runs the whole command and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitMet
	}
	if err == nil {
		var report *bench.Report
		if report, err = measure(ctx, o, stderr); err == nil {
			return finish(o, report, stdout, stderr)
		}
	}
	fmt.Fprintln(stderr, "bench:", err)
	return exitFailed
}

// finish writes the report to all destinations, and returns the exit code.
func finish(o *options, report *bench.Report, stdout, stderr io.Writer) int {
	write := report.Text
	if o.markdown {
		write = report.Markdown
	}
	err := write(stdout)
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, report))
	}
	if o.update != "" {
		err = errors.Join(err, update(o.update, report))
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	if o.smoke {
		fmt.Fprintln(stderr, "bench: -smoke: bars are shown, not judged")
		return exitMet
	}
	if len(report.Missed()) > 0 {
		return exitMissed
	}
	return exitMet
}

func writeJSON(path string, report *bench.Report) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(report.JSON(f), f.Close())
}

func update(path string, report *bench.Report) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := report.Update(string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
