// Package operator is what whoever runs a server decides about it, as data: where it listens, what requests may ask for, what of the host
// they may have, how much runs at a time, what is kept.
//
// Place in the flow. internal/cli reads it from flags, variables and a file; internal/serve makes a server of it. It is thin, so that both
// executables have the same command line; it imports the types of pkg/sandbox.
//
// Lifecycle and concurrency. Plain values, not changed once they are read: reading again makes new ones.
//
// Limits. Check finds what is wrong by itself. What the machine, a file or a name has to say about it is found out by internal/serve.
package operator

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Settings are an operator's decisions. What is zero is a default.
type Settings struct {
	// Where it is reached.
	Listen         []string // addresses; none is the user's own socket, or what systemd hands over
	TLSCert        string   // files in PEM
	TLSKey         string
	InsecureHTTP   bool     // plain HTTP where other machines can listen in
	Hosts          []string // names under which it is known
	Origins        []string // whose pages may use it
	MaxConnections int      // over TCP

	// Who comes in.
	Keys        string // file of keys; empty is the user's own
	RequireKeys bool   // even on the unix socket

	// What makes its sandboxes.
	Backend    string
	Runtime    string
	DockerHost string
	DiskFloor  sandbox.Size // free space that the disk below scratches keeps

	// What requests may ask for at the most.
	Max        sandbox.Limits
	MaxCompile sandbox.Limits
	MaxBody    sandbox.Size
	Require    sandbox.Tier // least tier that a request may accept

	// What of the host they may have (D12). None is nothing.
	Volumes         []string // directories
	WritableVolumes bool
	Workspaces      bool
	MaxWorkspaces   int          // of one key
	WorkspacesSize  sandbox.Size // that they may hold together
	Backends        []string
	Runtimes        []string
	Env             []string // names of variables
	WritableRoot    bool     // of images
	Images          []string // references or beginnings that end in *; none is all that are here
	Webhooks        bool
	WebhookHosts    []string // that may be private, or plain http

	// How much at a time.
	PromiseCPUs   float64 // cores and memory that may be promised to runs
	PromiseMemory sandbox.Size
	Queue         int // runs that wait
	QueuePerKey   int
	QueueWait     time.Duration
	Concurrency   int // of a key that has no limit of its own
	Rate          float64
	Burst         int

	// What is made ready beforehand.
	NoWarm     bool
	Warm       []string // languages that are made ready at the start
	WarmMemory sandbox.Size
	WarmCPUs   float64
	WarmPerKey bool // keys share no interpreter that forks

	ShareCompiled bool // keys share what compilers made

	// What is kept, and where.
	Dir      string
	KeepFor  time.Duration
	KeepRuns int
	KeepSize sandbox.Size
	// SpillSize is disk space for the output of runs under way, in all.
	SpillSize sandbox.Size
	AuditLog  string // file; "off" is none, empty the user's own

	DrainTimeout time.Duration
	LogLevel     slog.Level
}

// Check refuses what contradicts itself.
func (s *Settings) Check() error {
	if (s.TLSCert == "") != (s.TLSKey == "") {
		given, missing := "tls-cert", "tls-key"
		if s.TLSCert == "" {
			given, missing = missing, given
		}
		return &sandbox.Error{Op: given, Kind: sandbox.ErrInvalid, Err: errors.New("a certificate and its key come as two files"), Hint: "--" + missing + " FILE"}
	}
	if s.TLSCert != "" && s.InsecureHTTP {
		return sandbox.Invalid("insecure-http", "it contradicts tls-cert; leave out one of them")
	}
	for _, dir := range s.Volumes {
		if err := plainDirectory("allow-volume", dir); err != nil {
			return err
		}
		if dir == "/" {
			return sandbox.Invalid("allow-volume", "%q is the whole host; name directories of it", dir)
		}
	}
	if s.WritableVolumes && len(s.Volumes) == 0 {
		return sandbox.Invalid("allow-writable-volumes", "there is no volume it could be about; allow-volume names directories")
	}
	if len(s.WebhookHosts) > 0 && !s.Webhooks {
		return sandbox.Invalid("webhook-host", "webhooks are off; switch them on by webhooks")
	}
	if s.Burst > 0 && s.Rate == 0 {
		return sandbox.Invalid("burst", "without a rate it means nothing")
	}
	if s.NoWarm && (len(s.Warm) > 0 || s.WarmMemory > 0 || s.WarmCPUs > 0 || s.WarmPerKey) {
		return sandbox.Invalid("no-warm", "it contradicts warm, warm-memory, warm-cpus and warm-per-key")
	}
	for _, name := range s.Env {
		if name == "" || strings.ContainsAny(name, "= \t\n\x00") {
			return sandbox.Invalid("allow-env", "%q is no name of a variable", name)
		}
	}
	for _, path := range []struct{ name, value string }{{"dir", s.Dir}} {
		if path.value != "" {
			if err := plainDirectory(path.name, path.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// plainDirectory accepts a path that means what it says.
func plainDirectory(field, dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return sandbox.Invalid(field, "%q is not a plain absolute path", dir)
	}
	return nil
}

// Changes names what differs between two settings, as flags are called, without what a running server can take over.
func Changes(before, after *Settings) (names []string) {
	differ := func(name string, same bool) {
		if !same {
			names = append(names, name)
		}
	}
	for _, d := range []struct {
		name string
		a, b any
	}{
		{"tls-cert", before.TLSCert, after.TLSCert}, {"tls-key", before.TLSKey, after.TLSKey}, {"insecure-http", before.InsecureHTTP, after.InsecureHTTP},
		{"max-connections", before.MaxConnections, after.MaxConnections}, {"keys", before.Keys, after.Keys}, {"require-keys", before.RequireKeys, after.RequireKeys},
		{"backend", before.Backend, after.Backend}, {"runtime", before.Runtime, after.Runtime}, {"docker-host", before.DockerHost, after.DockerHost},
		{"disk-floor", before.DiskFloor, after.DiskFloor},
		{"max-body", before.MaxBody, after.MaxBody}, {"require", before.Require, after.Require},
		{"allow-writable-volumes", before.WritableVolumes, after.WritableVolumes}, {"allow-workspaces", before.Workspaces, after.Workspaces},
		{"allow-writable-root", before.WritableRoot, after.WritableRoot},
		{"max-workspaces", before.MaxWorkspaces, after.MaxWorkspaces}, {"max-workspaces-size", before.WorkspacesSize, after.WorkspacesSize},
		{"webhooks", before.Webhooks, after.Webhooks}, {"promise-cpus", before.PromiseCPUs, after.PromiseCPUs}, {"promise-memory", before.PromiseMemory, after.PromiseMemory},
		{"queue", before.Queue, after.Queue}, {"queue-per-key", before.QueuePerKey, after.QueuePerKey}, {"queue-wait", before.QueueWait, after.QueueWait},
		{"concurrency", before.Concurrency, after.Concurrency}, {"rate", before.Rate, after.Rate}, {"burst", before.Burst, after.Burst},
		{"no-warm", before.NoWarm, after.NoWarm}, {"warm-memory", before.WarmMemory, after.WarmMemory}, {"warm-cpus", before.WarmCPUs, after.WarmCPUs},
		{"warm-per-key", before.WarmPerKey, after.WarmPerKey}, {"share-compiled", before.ShareCompiled, after.ShareCompiled},
		{"dir", before.Dir, after.Dir}, {"keep", before.KeepFor, after.KeepFor}, {"keep-runs", before.KeepRuns, after.KeepRuns}, {"keep-size", before.KeepSize, after.KeepSize},
		{"spill-size", before.SpillSize, after.SpillSize},
		{"audit-log", before.AuditLog, after.AuditLog}, {"drain-timeout", before.DrainTimeout, after.DrainTimeout},
	} {
		differ(d.name, d.a == d.b)
	}
	for _, d := range []struct {
		name string
		a, b []string
	}{
		{"listen", before.Listen, after.Listen}, {"host", before.Hosts, after.Hosts}, {"allow-origin", before.Origins, after.Origins},
		{"allow-volume", before.Volumes, after.Volumes}, {"allow-backend", before.Backends, after.Backends}, {"allow-runtime", before.Runtimes, after.Runtimes},
		{"allow-env", before.Env, after.Env}, {"allow-image", before.Images, after.Images}, {"webhook-host", before.WebhookHosts, after.WebhookHosts},
		{"warm", before.Warm, after.Warm},
	} {
		differ(d.name, slices.Equal(d.a, d.b))
	}
	return names
}

// ParseLevel reads a level of logs.
func ParseLevel(text string) (slog.Level, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) || level.UnmarshalText([]byte(text)) != nil {
		return 0, fmt.Errorf("none of debug, info, warn, error")
	}
	return level, nil
}
