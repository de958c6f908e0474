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
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Settings are an operator's decisions. What is zero is a default. The tag flag names the flag of a setting that a running server can not take over.
type Settings struct {
	// Where it is reached.
	Listen         []string `flag:"listen"`   // addresses; none is the user's own socket, or what systemd hands over
	TLSCert        string   `flag:"tls-cert"` // files in PEM
	TLSKey         string   `flag:"tls-key"`
	InsecureHTTP   bool     `flag:"insecure-http"`   // plain HTTP where other machines can listen in
	Hosts          []string `flag:"host"`            // names under which it is known
	Origins        []string `flag:"allow-origin"`    // whose pages may use it
	MaxConnections int      `flag:"max-connections"` // over TCP

	// Who comes in.
	Keys        string `flag:"keys"`         // file of keys; empty is the user's own
	RequireKeys bool   `flag:"require-keys"` // even on the unix socket

	// What makes its sandboxes.
	Backend    string       `flag:"backend"`
	Runtime    string       `flag:"runtime"`
	DockerHost string       `flag:"docker-host"`
	DiskFloor  sandbox.Size `flag:"disk-floor"` // free space that the disk below scratches keeps

	// What requests may ask for at the most.
	Max        sandbox.Limits
	MaxCompile sandbox.Limits
	MaxBody    sandbox.Size `flag:"max-body"`
	Require    sandbox.Tier `flag:"require"` // least tier that a request may accept

	// What of the host they may have (D12). None is nothing.
	Volumes         []string     `flag:"allow-volume"` // directories
	WritableVolumes bool         `flag:"allow-writable-volumes"`
	Workspaces      bool         `flag:"allow-workspaces"`
	MaxWorkspaces   int          `flag:"max-workspaces"`      // of one key
	WorkspacesSize  sandbox.Size `flag:"max-workspaces-size"` // that they may hold together
	Backends        []string     `flag:"allow-backend"`
	Runtimes        []string     `flag:"allow-runtime"`
	Env             []string     `flag:"allow-env"`           // names of variables
	WritableRoot    bool         `flag:"allow-writable-root"` // of images
	Images          []string     `flag:"allow-image"`         // references or beginnings that end in *; none is all that are here
	Webhooks        bool         `flag:"webhooks"`
	WebhookHosts    []string     `flag:"webhook-host"` // that may be private, or plain http

	// How much at a time.
	PromiseCPUs   float64       `flag:"promise-cpus"` // cores and memory that may be promised to runs
	PromiseMemory sandbox.Size  `flag:"promise-memory"`
	Queue         int           `flag:"queue"` // runs that wait
	QueuePerKey   int           `flag:"queue-per-key"`
	QueueWait     time.Duration `flag:"queue-wait"`
	Concurrency   int           `flag:"concurrency"` // of a key that has no limit of its own
	Rate          float64       `flag:"rate"`
	Burst         int           `flag:"burst"`

	// What is made ready beforehand.
	NoWarm     bool         `flag:"no-warm"`
	Warm       []string     `flag:"warm"` // languages that are made ready at the start
	WarmMemory sandbox.Size `flag:"warm-memory"`
	WarmCPUs   float64      `flag:"warm-cpus"`
	WarmPerKey bool         `flag:"warm-per-key"` // keys share no interpreter that forks

	ShareCompiled bool `flag:"share-compiled"` // keys share what compilers made

	// What is kept, and where.
	Dir      string        `flag:"dir"`
	KeepFor  time.Duration `flag:"keep"`
	KeepRuns int           `flag:"keep-runs"`
	KeepSize sandbox.Size  `flag:"keep-size"`
	// SpillSize is disk space for the output of runs under way, in all.
	SpillSize sandbox.Size `flag:"spill-size"`
	AuditLog  string       `flag:"audit-log"` // file; "off" is none, empty the user's own

	DrainTimeout time.Duration `flag:"drain-timeout"`
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
	b, a := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range b.NumField() {
		name := b.Type().Field(i).Tag.Get("flag")
		if name != "" && !reflect.DeepEqual(b.Field(i).Interface(), a.Field(i).Interface()) {
			names = append(names, name)
		}
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
