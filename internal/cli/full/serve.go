package full

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/serve"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("serve", (*commands).newServe) }

const serveLong = `Serves the HTTP API: it runs programs for authorised clients, warm, and many at a time.

It listens on a unix socket that is yours alone, $XDG_RUNTIME_DIR/sandbox-run/server.sock
(root: /run/sandbox-run/server.sock), unless --listen names other places. Addresses that
other machines can reach need API keys (sandbox-run key create) and TLS.

Whatever requests ask for, they get no more than the ceilings below, and nothing of this
machine but what is allowed here by name.

Settings can stand in a file, too, under the names of the flags (max_memory: 4g). Flags
beat variables, which beat the file. SIGHUP reads ceilings, log level and certificates
again; keys are read again when their file changes. SIGTERM takes no more requests and
ends when the runs have, or after --drain-timeout; a second one ends them at once.`

const serveExample = `  sandbox-run serve
  sandbox-run serve --listen 127.0.0.1:8080 --max-memory 1g --max-timeout 10s
  sandbox-run serve --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem --host run.example.com
  sandbox-run serve --config server.yaml --check`

// serveOptions are the flags of serve.
type serveOptions struct {
	settings operator.Settings
	config   string
	check    bool
}

const defaultDrain = 30 * time.Second

func (c *commands) newServe() *cobra.Command {
	cmd, _ := c.serveCommand()
	return cmd
}

func (c *commands) serveCommand() (*cobra.Command, *serveOptions) {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use: "serve [flags]", Long: serveLong, Example: serveExample,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.serve(cmd, o) },
	}
	cli.FlagGroups{
		{Title: "Where it is reached", Add: o.reachFlags}, {Title: "What sandboxes are made by", Add: o.makerFlags},
		{Title: "What requests may ask for at the most", Add: o.ceilingFlags},
		{Title: "What of this machine they may have", Add: o.allowFlags}, {Title: "How much at a time", Add: o.loadFlags},
		{Title: "What is made ready beforehand", Add: o.warmFlags},
		{Title: "What is kept", Add: o.keepFlags}, {Title: "Running it", Add: func(fs *pflag.FlagSet) { o.runFlags(fs, c) }},
	}.AddTo(cmd)
	return cmd, o
}

func (o *serveOptions) reachFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.Var(&cli.List{Into: &s.Listen}, "listen", "`address`: unix:///path, 127.0.0.1:8080; repeatable (default your own socket)")
	fs.StringVar(&s.TLSCert, "tls-cert", "", "certificate `file`, PEM; read again when it changes")
	fs.StringVar(&s.TLSKey, "tls-key", "", "its private key, a `file` in PEM")
	fs.BoolVar(&s.InsecureHTTP, "insecure-http", false, "plain HTTP even where other machines can read along")
	fs.Var(&cli.List{Into: &s.Hosts}, "host", "`name` under which it is known, without a port; repeatable")
	fs.Var(&cli.List{Into: &s.Origins}, "allow-origin", "`origin` whose pages may use it, such as https://app.example.com; repeatable")
	fs.StringVar(&s.Keys, "keys", "", "`file` of keys (default your own)")
	fs.BoolVar(&s.RequireKeys, "require-keys", false, "ask for a key even on the unix socket: a proxy may stand before it")
	cli.AddParsed(fs, &s.MaxConnections, "max-connections", "4096", "`number` of TCP connections at a time", cli.ReadCount)
}

func (o *serveOptions) makerFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.StringVar(&s.Backend, "backend", app.Auto, "`name` of the backend: "+strings.Join(append([]string{app.Auto}, app.AllBackends()...),
		", "))
	fs.StringVar(&s.Runtime, "runtime", "", "OCI runtime of the oci or docker backend, by `name`")
	fs.StringVar(&s.DockerHost, "docker-host", "", "`address` of the daemon for the docker backend")
	cli.AddParsed(fs, &s.DiskFloor, "disk-floor", "",
		"`size` that the disk below scratches keeps free: runs are stopped below it (default the smaller of 1g and 5 % of it)", cli.ReadSize)
	cli.AddParsed(fs, &s.Require, "require", string(sandbox.TierContainer),
		"least `tier` that a request may accept: process, namespace, container, gvisor, microvm", sandbox.ParseTier)
}

func (o *serveOptions) ceilingFlags(fs *pflag.FlagSet) {
	run, compile := sandbox.DefaultCeilings()
	for _, row := range sandbox.AllLimits() {
		if !row.NoCeiling {
			cli.AddLimit(fs, row, "max-", cmp.Or(row.CeilingUsage, row.Usage), &o.settings.Max, &run)
		}
	}
	cli.AddCompileLimits(fs, "max-", &o.settings.MaxCompile, &compile)
	cli.AddParsed(fs, &o.settings.MaxBody, "max-body", "32m", "`size` of a request", cli.ReadSize)
}

func (o *serveOptions) allowFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.Var(&cli.List{Into: &s.Volumes}, "allow-volume", "`directory` that volumes may show, with all in it; repeatable")
	fs.BoolVar(&s.WritableVolumes, "allow-writable-volumes", false, "let them be writable")
	fs.BoolVar(&s.Workspaces, "allow-workspaces", false, "let requests use your workspaces")
	cli.AddParsed(fs, &s.MaxWorkspaces, "max-workspaces", "16", "`number` of them that one key may have", cli.ReadCount)
	cli.AddParsed(fs, &s.WorkspacesSize, "max-workspaces-size", "16g", "`size` that the caps of one key's add up to", cli.ReadSize)
	fs.Var(&cli.List{Into: &s.Backends}, "allow-backend", "`name` of a backend that requests may choose; repeatable")
	fs.Var(&cli.List{Into: &s.Runtimes}, "allow-runtime", "`name` of a runtime that they may choose; repeatable")
	fs.Var(&cli.List{Into: &s.Env}, "allow-env", "`name` of a variable of ours that may be passed on; repeatable")
	fs.Var(&cli.List{Into: &s.Images}, "allow-image",
		"`reference` that they may name, or its beginning and *; repeatable (default all that are here)")
	fs.BoolVar(&s.WritableRoot, "allow-writable-root", false, "let them change an image's files for the time of a run")
	fs.BoolVar(&s.Webhooks, "webhooks", false, "tell addresses that requests name of the end of runs; never private ones")
	fs.Var(&cli.List{Into: &s.WebhookHosts}, "webhook-host", "`host` or prefix that may be private or plain http; repeatable")
}

func (o *serveOptions) loadFlags(fs *pflag.FlagSet) {
	s := &o.settings
	cli.AddParsed(fs, &s.PromiseCPUs, "promise-cpus", "", "`cores` that runs may have together (default four times those of this machine)",
		cli.ReadCores)
	cli.AddParsed(fs, &s.PromiseMemory, "promise-memory", "", "memory `size` that they may have together (default most of this machine's)",
		cli.ReadSize)
	cli.AddParsed(fs, &s.Queue, "queue", "256", "`number` of runs that may wait", cli.ReadCount)
	cli.AddParsed(fs, &s.QueuePerKey, "queue-per-key", "", "`number` of runs of one key that may wait (default --queue)", cli.ReadCount)
	cli.AddParsed(fs, &s.QueueWait, "queue-wait", "30s", "longest `time` that one waits", cli.ReadDuration)
	cli.AddParsed(fs, &s.Concurrency, "concurrency", "", "`number` of runs at a time of a key that has no such limit (default no limit)",
		cli.ReadCount)
	cli.AddParsed(fs, &s.Rate, "rate", "", "runs a second of a key that has no such limit, a `number` (default no limit)", cli.ReadCores)
	cli.AddParsed(fs, &s.Burst, "burst", "", "`number` of runs at once that --rate does not hold up", cli.ReadCount)
}

func (o *serveOptions) warmFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.Var(&cli.List{Into: &s.Warm, Commas: true}, "warm",
		"languages to make ready at the start: `names` with commas (default as they are asked for)")
	cli.AddParsed(fs, &s.WarmMemory, "warm-memory", "1g", "memory `size` for what waits", cli.ReadSize)
	cli.AddParsed(fs, &s.WarmCPUs, "warm-cpus", "", "`cores` that making it may take (default half of this machine's)", cli.ReadCores)
	fs.BoolVar(&s.WarmPerKey, "warm-per-key", false, "no two keys have programs forked from one interpreter")
	fs.BoolVar(&s.ShareCompiled, "share-compiled", false, "keys use each other's compiled programs, which tells one what another has compiled")
	fs.BoolVar(&s.NoWarm, "no-warm", false, "start everything cold")
}

func (o *serveOptions) keepFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.StringVar(&s.Dir, "dir", "", "`directory` for runs that were accepted and their results (default below $XDG_STATE_HOME)")
	cli.AddParsed(fs, &s.KeepFor, "keep", "1h", "`time` for which finished runs are kept", cli.ReadDuration)
	cli.AddParsed(fs, &s.KeepRuns, "keep-runs", "10000", "`number` of finished runs that are kept", cli.ReadCount)
	cli.AddParsed(fs, &s.KeepSize, "keep-size", "4g", "`size` of all that is kept", cli.ReadSize)
	cli.AddParsed(fs, &s.SpillSize, "spill-size", "4g", "disk `size` for output of runs under way; without room less of it is kept",
		cli.ReadSize)
	fs.StringVar(&s.AuditLog, "audit-log", "", "write a line on every run to this `file` instead of your own log; off: nowhere")
}

func (o *serveOptions) runFlags(fs *pflag.FlagSet, c *commands) {
	s := &o.settings
	fs.StringVar(&o.config, "config", "", "`file` of settings, YAML or JSON")
	fs.BoolVar(&o.check, "check", false, "say what is wrong with the settings, or what they come to; serve nothing")
	fs.BoolVar(&c.JSON, "json", false, "with --check: print one JSON document")
	cli.AddParsed(fs, &s.DrainTimeout, "drain-timeout", defaultDrain.String(), "`time` that runs have to end after SIGTERM", cli.ReadDuration)
	cli.AddParsed(fs, &s.LogLevel, "log-level", "info", "least `level` of what is logged: debug, info, warn, error", operator.ParseLevel)
	for _, name := range []string{"config", "check", "json"} {
		cli.Annotate(fs.Lookup(name), noSetting, "it is about the command")
	}
	cli.Annotate(fs.Lookup("check"), cli.NoVariable, "it is about the command")
}

// complete reads the file, and makes settings of everything.
func (o *serveOptions) complete(flags *pflag.FlagSet) error {
	for _, name := range []string{"config", "keys", "tls-cert", "tls-key", "runtime", "docker-host", "dir", "audit-log"} {
		if err := cli.CheckNotEmpty(flags, name); err != nil {
			return err
		}
	}
	if o.config != "" {
		if err := readSettings(flags, o.config); err != nil {
			return err
		}
	}
	s := &o.settings
	if s.DrainTimeout == 0 {
		s.DrainTimeout = defaultDrain
	}
	if err := app.CheckBackend(s.Backend); err != nil {
		return err
	}
	for _, name := range s.Backends {
		if err := app.CheckBackend(name); err != nil || name == app.Auto {
			return sandbox.Invalid("allow-backend", "unknown backend %q; use one of %s", name, strings.Join(app.AllBackends(), ", "))
		}
	}
	if err := app.CheckRuntime(s.Backend, s.Runtime); err != nil {
		return err
	}
	return s.Check()
}

func (c *commands) serve(cmd *cobra.Command, o *serveOptions) error {
	if err := o.complete(cmd.Flags()); err != nil {
		return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
	}
	with := serve.Options{
		Settings: &o.settings, Again: func() (*operator.Settings, error) { return c.readAgain(cmd.Root()) },
		Version: cli.Version(debug.ReadBuildInfo()), Err: c.Std.Err, Exit: os.Exit,
	}
	if !o.check {
		if c.JSON {
			return &sandbox.Error{Op: "--json", Kind: sandbox.ErrInvalid, Err: errors.New("it is for --check; a server's logs are JSON anyway"),
				Hint: cli.HelpHint(cmd)}
		}
		return cli.NameSource(cmd.Flags(), serve.Serve(context.Background(), with), cli.HelpHint(cmd))
	}
	report, err := serve.Check(cmd.Context(), with)
	if err != nil {
		return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
	}
	if c.JSON {
		return c.WriteJSON(report)
	}
	_, err = fmt.Fprint(c.Std.Out, cli.EscapeText(checkText(report)))
	return err
}

// readAgain reads the command line, the environment and the file as they are now.
func (c *commands) readAgain(root *cobra.Command) (*operator.Settings, error) {
	_, rest, err := root.Find(c.Args)
	if err != nil {
		return nil, err
	}
	cmd, o := (&commands{&cli.Invocation{Std: c.Std}}).serveCommand()
	if err := cmd.ParseFlags(rest); err != nil {
		return nil, err
	}
	if err := cli.ReadEnvironment(cmd.Flags(), os.LookupEnv, cli.HelpHint(cmd)); err != nil {
		return nil, err
	}
	if err := o.complete(cmd.Flags()); err != nil {
		return nil, cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
	}
	return &o.settings, nil
}

// checkText is what serve --check says.
func checkText(r *serve.Report) string {
	var b strings.Builder
	for _, a := range r.Listen {
		how := "for this user and root"
		switch {
		case a.Keys:
			how = "with a key"
		case a.Kind != "unix":
			how = "for every user of this machine"
		}
		if a.TLS {
			how += ", TLS"
		}
		fmt.Fprintf(&b, "%-10s %s (%s)\n", "listen", a.Address, how)
	}
	fmt.Fprintf(&b, "%-10s %d\n%-10s %s, tier %s; requests may accept no less than %s\n", "keys", r.Keys, "backend", r.Backend, r.Tier,
		r.Require)
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "%-10s %s\n", "note", note)
	}
	return b.String()
}
