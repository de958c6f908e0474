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
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("serve", (*commands).newServe) }

const serveLong = `Serves the HTTP API: runs programs for authorised clients, with warm starts, and many at
a time.

It listens on your own unix socket, $XDG_RUNTIME_DIR/sandbox-run/server.sock (root:
/run/sandbox-run/server.sock), unless --listen names other addresses. Addresses that
other machines can reach need API keys (sandbox-run key create) and TLS.

Requests get no more than the ceilings below, and of this machine only what is allowed
here by name.

Settings can also stand in a file, under the names of the flags (max_memory: 4g). Flags
take precedence over variables, and variables over the file. SIGHUP reloads ceilings, log
level and certificates; keys are reloaded when their file changes. After SIGTERM the
server accepts no requests and exits when all runs have ended, or after --drain-timeout;
a second SIGTERM ends the runs at once.`

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
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runServer(cmd, o) },
	}
	cli.FlagGroups{
		{Title: "Addresses and authentication", Add: o.addReachFlags}, {Title: "Backend", Add: o.addMakerFlags},
		{Title: "Ceilings of requests", Add: o.addCeilingFlags},
		{Title: "Networks of requests", Add: o.addNetworkFlags},
		{Title: "What requests may use of this machine", Add: o.addAllowFlags}, {Title: "Load", Add: o.addLoadFlags},
		{Title: "Sessions", Add: o.addSessionFlags},
		{Title: "Warm starts", Add: o.addWarmFlags},
		{Title: "What the server keeps", Add: o.addKeepFlags}, {Title: "Running it", Add: func(fs *pflag.FlagSet) { o.addRunFlags(fs, c) }},
	}.AddTo(cmd)
	return cmd, o
}

func (o *serveOptions) addReachFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.Var(&cli.List{Into: &s.Listen}, "listen", "`address`: unix:///path, 127.0.0.1:8080; repeatable (default your own socket)")
	fs.StringVar(&s.TLSCert, "tls-cert", "", "certificate `file`, PEM; read again when it changes")
	fs.StringVar(&s.TLSKey, "tls-key", "", "its private key, a `file` in PEM")
	fs.BoolVar(&s.InsecureHTTP, "insecure-http", false, "allow plain HTTP on addresses that other machines can reach")
	fs.Var(&cli.List{Into: &s.Hosts}, "host", "`name` of this server in requests, without a port; repeatable")
	fs.Var(&cli.List{Into: &s.Origins}, "allow-origin", "`origin` whose pages may use the API, such as https://app.example.com; repeatable")
	fs.StringVar(&s.Keys, "keys", "", "`file` of keys (default your own)")
	fs.BoolVar(&s.RequireKeys, "require-keys", false, "require a key on the unix socket as well, for example behind a proxy")
	cli.AddParsed(fs, &s.MaxConnections, "max-connections", "4096", "`number` of TCP connections at a time", cli.ReadCount)
}

func (o *serveOptions) addMakerFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.StringVar(&s.Backend, "backend", app.Auto, "`name` of the backend: "+strings.Join(append([]string{app.Auto}, app.AllBackends()...),
		", "))
	fs.StringVar(&s.Runtime, "runtime", "", "OCI runtime of the oci or docker backend, by `name`")
	fs.StringVar(&s.DockerHost, "docker-host", "", "`address` of the daemon for the docker backend")
	cli.AddParsed(fs, &s.DiskFloor, "disk-floor", "",
		"free `size` of the scratch disk below which runs are stopped (default the smaller of 1g and 5 % of the disk)", cli.ReadSize)
	cli.AddParsed(fs, &s.Require, "require", string(sandbox.TierContainer),
		"lowest `tier` that a request may accept: process, namespace, container, gvisor, microvm", sandbox.ParseTier)
}

func (o *serveOptions) addCeilingFlags(fs *pflag.FlagSet) {
	run, compile := sandbox.DefaultCeilings()
	for _, row := range sandbox.AllLimits() {
		if !row.NoCeiling {
			cli.AddLimit(fs, row, "max-", cmp.Or(row.CeilingUsage, row.Usage), &o.settings.Max, &run)
		}
	}
	cli.AddCompileLimits(fs, "max-", &o.settings.MaxCompile, &compile)
	cli.AddParsed(fs, &o.settings.MaxBody, "max-body", "32m", "`size` of a request", cli.ReadSize)
}

func (o *serveOptions) addNetworkFlags(fs *pflag.FlagSet) {
	s := &o.settings
	n := &s.Network
	cli.AddParsed(fs, &n.Mode, "max-network", string(network.Localhost),
		"most network `mode` that a request may ask for: none, localhost, allow, full, learn", sandbox.ParseNetwork)
	fs.Var(&cli.List{Into: &n.Allow, Check: func(text string) error { return network.Policy{Allow: []string{text}}.Validate() }},
		"max-network-allow", "`HOST[:PORT[,PORT]][/udp]` that requests may allow; repeatable; implies --max-network allow")
	fs.Var(&cli.List{Into: &n.Registries, Commas: true, Check: func(text string) error {
		return network.Policy{Registries: []string{text}}.Validate()
	}}, "max-network-registries", "package `registries` that requests may allow: "+strings.Join(network.Registries(), ", "))
	fs.Var(&cli.List{Into: &n.Deny, Check: func(text string) error {
		return network.Policy{Mode: network.Full, Deny: []string{text}}.Validate()
	}}, "max-network-deny", "`HOST[:PORT]` that no request reaches; repeatable")
	fs.BoolVar(&n.DNS, "max-network-dns", false, "allow requests to resolve every name; names can carry data out")
	fs.Var(&cli.List{Into: &s.Forbidden, Check: func(text string) error {
		_, err := operator.ParsePrefix(text)
		return err
	}}, "forbid-network", "`prefix` of addresses that no request reaches, whatever the rules; repeatable")
	fs.BoolVar(&s.Publish, "allow-publish", false, "allow requests to publish ports of their programs on 127.0.0.1 of this machine")
	fs.Var(&cli.List{Into: &s.Registries, Check: func(text string) error {
		_, _, err := operator.ParseRegistry(text)
		return err
	}}, "registries", "`NAME=HOST[:PORT]` that a registry's name stands for here; repeatable")
}

func (o *serveOptions) addAllowFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.Var(&cli.List{Into: &s.Volumes}, "allow-volume", "`directory` that volumes may mount, with everything in it; repeatable")
	fs.BoolVar(&s.WritableVolumes, "allow-writable-volumes", false, "allow writable volumes")
	fs.BoolVar(&s.Workspaces, "allow-workspaces", false, "allow requests to use your workspaces")
	cli.AddParsed(fs, &s.MaxWorkspaces, "max-workspaces", "16", "`number` of workspaces of one key", cli.ReadCount)
	cli.AddParsed(fs, &s.WorkspacesSize, "max-workspaces-size", "16g", "`size` of the caps of all workspaces of one key", cli.ReadSize)
	fs.Var(&cli.List{Into: &s.Backends}, "allow-backend", "`name` of a backend that requests may choose; repeatable")
	fs.Var(&cli.List{Into: &s.Runtimes}, "allow-runtime", "`name` of a runtime that requests may choose; repeatable")
	fs.Var(&cli.List{Into: &s.Env}, "allow-env", "`name` of a variable of the server that requests may pass on; repeatable")
	fs.Var(&cli.List{Into: &s.Images}, "allow-image",
		"`reference` of an image that requests may use, or its beginning and *; repeatable (default all stored images)")
	fs.Var(&cli.List{Into: &s.Packages, Commas: true, Check: registry.CheckName}, "allow-packages",
		"`registries` from which requests may install: "+strings.Join(registry.Names(), ", "))
	cli.AddParsed(fs, &s.PackagesSize, "max-packages-size", "4g", "disk `size` of one installation", cli.ReadSize)
	cli.AddParsed(fs, &s.LayersSize, "max-layers-size", "16g", "`size` of all packages of one key", cli.ReadSize)
	cli.AddParsed(fs, &s.Installations, "max-installations", "2", "`number` of installations at a time", cli.ReadCount)
	fs.BoolVar(&s.WritableRoot, "allow-writable-root", false, "allow requests to change an image's files")
	fs.BoolVar(&s.Webhooks, "webhooks", false, "report finished runs to the addresses that requests name, except private ones")
	fs.Var(&cli.List{Into: &s.WebhookHosts}, "webhook-host", "`host` or prefix of webhooks that may be private or plain http; repeatable")
}

func (o *serveOptions) addLoadFlags(fs *pflag.FlagSet) {
	s := &o.settings
	cli.AddParsed(fs, &s.PromiseCPUs, "promise-cpus", "", "`cores` of all runs together (default four times those of this machine)",
		cli.ReadCores)
	cli.AddParsed(fs, &s.PromiseMemory, "promise-memory", "", "memory `size` of all runs together (default most of this machine's)",
		cli.ReadSize)
	cli.AddParsed(fs, &s.Queue, "queue", "256", "`number` of runs that may wait", cli.ReadCount)
	cli.AddParsed(fs, &s.QueuePerKey, "queue-per-key", "", "`number` of runs of one key that may wait (default --queue)", cli.ReadCount)
	cli.AddParsed(fs, &s.QueueWait, "queue-wait", "30s", "longest `time` that a run waits", cli.ReadDuration)
	cli.AddParsed(fs, &s.Concurrency, "concurrency", "", "`number` of concurrent runs of a key without its own limit (default no limit)",
		cli.ReadCount)
	cli.AddParsed(fs, &s.Rate, "rate", "", "`number` of runs per second of a key without its own limit (default no limit)", cli.ReadCores)
	cli.AddParsed(fs, &s.Burst, "burst", "", "`number` of runs at once that --rate does not delay (default --concurrency)", cli.ReadCount)
}

func (o *serveOptions) addSessionFlags(fs *pflag.FlagSet) {
	s := &o.settings
	cli.AddParsed(fs, &s.MaxSessions, "max-sessions", "1000", "`number` of sessions; 0: there are no sessions", readSessions)
	cli.AddParsed(fs, &s.SessionsPerKey, "sessions-per-key", "", "`number` of sessions of one key (default --max-sessions)", cli.ReadCount)
	cli.AddParsed(fs, &s.SessionIdle, "session-idle", "30m", "`time` without a call after which a session ends", cli.ReadDuration)
	cli.AddParsed(fs, &s.SessionLifetime, "session-lifetime", "24h", "`time` after which a session ends", cli.ReadDuration)
	cli.AddParsed(fs, &s.SessionQueue, "session-queue", "16", "`number` of cells of a session that may wait", cli.ReadCount)
}

// readSessions parses a number of sessions. Zero is below zero in settings, because a zero setting has its default.
func readSessions(text string) (int, error) {
	n, err := sandbox.ParseCount(text)
	if err == nil && n == 0 {
		return -1, nil
	}
	return n, err
}

func (o *serveOptions) addWarmFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.Var(&cli.List{Into: &s.Warm, Commas: true}, "warm",
		"languages to prepare at the start: `names` with commas (default with their first request)")
	cli.AddParsed(fs, &s.WarmMemory, "warm-memory", "1g", "memory `size` of waiting sandboxes and processes", cli.ReadSize)
	cli.AddParsed(fs, &s.WarmCPUs, "warm-cpus", "", "`cores` for preparing them (default half of this machine's)", cli.ReadCores)
	fs.BoolVar(&s.WarmPerKey, "warm-per-key", false, "fork programs of different keys from different interpreters")
	fs.BoolVar(&s.ShareCompiled, "share-compiled", false,
		"share compiled programs and installed packages between keys; a key can then find out what another has")
	fs.BoolVar(&s.NoWarm, "no-warm", false, "start everything cold")
}

func (o *serveOptions) addKeepFlags(fs *pflag.FlagSet) {
	s := &o.settings
	fs.StringVar(&s.Dir, "dir", "", "`directory` of accepted runs and their results (default below $XDG_STATE_HOME)")
	cli.AddParsed(fs, &s.KeepFor, "keep", "1h", "`time` for which finished runs are kept", cli.ReadDuration)
	cli.AddParsed(fs, &s.KeepRuns, "keep-runs", "10000", "`number` of finished runs that are kept", cli.ReadCount)
	cli.AddParsed(fs, &s.KeepSize, "keep-size", "4g", "`size` of all kept runs", cli.ReadSize)
	cli.AddParsed(fs, &s.SpillSize, "spill-size", "4g", "disk `size` for the output of current runs; if it is used up, less output is kept",
		cli.ReadSize)
	fs.StringVar(&s.AuditLog, "audit-log", "", "audit log `file` (default your own log); off: no log")
}

func (o *serveOptions) addRunFlags(fs *pflag.FlagSet, c *commands) {
	s := &o.settings
	fs.StringVar(&o.config, "config", "", "`file` of settings, YAML or JSON")
	fs.BoolVar(&o.check, "check", false, "check the settings and print the result; do not serve")
	fs.BoolVar(&c.JSON, "json", false, "with --check: print one JSON document")
	cli.AddParsed(fs, &s.DrainTimeout, "drain-timeout", defaultDrain.String(), "`time` for runs to end after SIGTERM", cli.ReadDuration)
	cli.AddParsed(fs, &s.LogLevel, "log-level", "info", "lowest `level` that is logged: debug, info, warn, error", operator.ParseLevel)
	for _, name := range []string{"config", "check", "json"} {
		cli.Annotate(fs.Lookup(name), noSetting, "it is about the command")
	}
	cli.Annotate(fs.Lookup("check"), cli.NoVariable, "it is about the command")
}

// complete reads the settings file and checks all settings.
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

func (c *commands) runServer(cmd *cobra.Command, o *serveOptions) error {
	if err := o.complete(cmd.Flags()); err != nil {
		return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
	}
	with := serve.Options{
		Settings: &o.settings, Again: func() (*operator.Settings, error) { return c.reloadSettings(cmd.Root()) },
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
	_, err = fmt.Fprint(c.Std.Out, cli.EscapeText(formatCheck(report)))
	return err
}

// reloadSettings reads the settings from the command line, the environment and the file again.
func (c *commands) reloadSettings(root *cobra.Command) (*operator.Settings, error) {
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

// formatCheck formats the report of serve --check.
func formatCheck(r *serve.Report) string {
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
