// Package operator has the settings of a server as data: addresses, ceilings of requests, access to the host, load, warm starts and
// storage.
//
// Place in the flow. internal/cli reads the settings from flags, variables and a file; internal/serve makes a server from them.
// The package imports only the types of pkg/sandbox and pkg/network, so that both executables can have the same command line.
//
// Lifecycle and concurrency. Settings are plain values that do not change after they are read; a reload makes new ones.
//
// Limits. Check finds contradictions within the settings. internal/serve checks them against the machine, files and host names.
package operator

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Settings are an operator's decisions. A zero field has its default. The tag flag names the flag of a setting that needs a
// restart of the server.
type Settings struct {
	// Listening.
	Listen         []string `flag:"listen"`   // addresses; empty: the user's own socket, or the sockets of systemd
	TLSCert        string   `flag:"tls-cert"` // files in PEM
	TLSKey         string   `flag:"tls-key"`
	InsecureHTTP   bool     `flag:"insecure-http"`   // plain HTTP on addresses that other machines reach
	Hosts          []string `flag:"host"`            // host names of the server
	Origins        []string `flag:"allow-origin"`    // origins of web pages that may use the server
	MaxConnections int      `flag:"max-connections"` // over TCP

	// Authentication.
	Keys        string `flag:"keys"`         // file of keys; empty: the user's own
	RequireKeys bool   `flag:"require-keys"` // even on the unix socket

	// Backend.
	Backend    string       `flag:"backend"`
	Runtime    string       `flag:"runtime"`
	DockerHost string       `flag:"docker-host"`
	DiskFloor  sandbox.Size `flag:"disk-floor"` // free space that stays on the disk below the scratches

	// Ceilings of requests.
	Max        sandbox.Limits
	MaxCompile sandbox.Limits
	MaxBody    sandbox.Size `flag:"max-body"`
	Require    sandbox.Tier `flag:"require"` // lowest tier that a request may accept

	// Networks of requests.
	Network    network.Policy // the most that a request may ask for; zero: localhost
	Forbidden  []string       // prefixes that no network reaches
	Publish    bool           // on the loopback of this machine
	Registries []string       // NAME=RULE, in place of what the name stands for

	// Access to the host. An empty setting allows nothing.
	Volumes         []string     `flag:"allow-volume"` // directories
	WritableVolumes bool         `flag:"allow-writable-volumes"`
	Workspaces      bool         `flag:"allow-workspaces"`
	MaxWorkspaces   int          `flag:"max-workspaces"`      // of one key
	WorkspacesSize  sandbox.Size `flag:"max-workspaces-size"` // of all workspaces of one key
	Backends        []string     `flag:"allow-backend"`
	Runtimes        []string     `flag:"allow-runtime"`
	Env             []string     `flag:"allow-env"`           // names of variables
	WritableRoot    bool         `flag:"allow-writable-root"` // of images
	Images          []string     `flag:"allow-image"`         // references, or prefixes that end in *; empty: all images of the store
	Packages        []string     `flag:"allow-packages"`      // registries from which requests may install
	PackagesSize    sandbox.Size `flag:"max-packages-size"`   // of the disk of one installation
	LayersSize      sandbox.Size `flag:"max-layers-size"`     // of all installed packages of one key
	Installations   int          `flag:"max-installations"`   // at a time
	Webhooks        bool         `flag:"webhooks"`
	WebhookHosts    []string     `flag:"webhook-host"` // hosts that may be private or have plain HTTP

	// Load.
	PromiseCPUs   float64       `flag:"promise-cpus"` // cores and memory that running programs may have in total
	PromiseMemory sandbox.Size  `flag:"promise-memory"`
	Queue         int           `flag:"queue"` // waiting runs
	QueuePerKey   int           `flag:"queue-per-key"`
	QueueWait     time.Duration `flag:"queue-wait"`
	Concurrency   int           `flag:"concurrency"` // of a key without a limit of its own
	Rate          float64       `flag:"rate"`
	Burst         int           `flag:"burst"`

	// Sessions.
	MaxSessions     int           `flag:"max-sessions"`     // of all keys; below 0: there are none
	SessionsPerKey  int           `flag:"sessions-per-key"` // of one key
	SessionIdle     time.Duration `flag:"session-idle"`     // most that a request may ask for
	SessionLifetime time.Duration `flag:"session-lifetime"`
	SessionQueue    int           `flag:"session-queue"` // cells of a session that wait

	// Warm starts.
	NoWarm     bool         `flag:"no-warm"`
	Warm       []string     `flag:"warm"` // languages that are prepared at the start
	WarmMemory sandbox.Size `flag:"warm-memory"`
	WarmCPUs   float64      `flag:"warm-cpus"`
	WarmPerKey bool         `flag:"warm-per-key"` // keys share no zygote

	ShareCompiled bool `flag:"share-compiled"` // keys share compiled programs

	// Storage.
	Dir      string        `flag:"dir"`
	KeepFor  time.Duration `flag:"keep"`
	KeepRuns int           `flag:"keep-runs"`
	KeepSize sandbox.Size  `flag:"keep-size"`
	// SpillSize is the disk space for the output of all running programs.
	SpillSize sandbox.Size `flag:"spill-size"`
	AuditLog  string       `flag:"audit-log"` // file; "off": none; empty: the user's own

	DrainTimeout time.Duration `flag:"drain-timeout"`
	LogLevel     slog.Level
}

// Check refuses settings that contradict each other.
func (s *Settings) Check() error {
	if (s.TLSCert == "") != (s.TLSKey == "") {
		given, missing := "tls-cert", "tls-key"
		if s.TLSCert == "" {
			given, missing = missing, given
		}
		return &sandbox.Error{Op: given, Kind: sandbox.ErrInvalid, Err: errors.New("a certificate and its key come as two files"),
			Hint: "--" + missing + " FILE"}
	}
	if s.TLSCert != "" && s.InsecureHTTP {
		return sandbox.Invalid("insecure-http", "it contradicts tls-cert; leave out one of them")
	}
	for _, dir := range s.Volumes {
		if err := plainDirectory("allow-volume", dir); err != nil {
			return err
		}
		if dir == "/" {
			return sandbox.Invalid("allow-volume", "%q is the whole host; name directories below it", dir)
		}
	}
	if s.WritableVolumes && len(s.Volumes) == 0 {
		return sandbox.Invalid("allow-writable-volumes", "no volume is allowed; name directories with allow-volume")
	}
	if len(s.WebhookHosts) > 0 && !s.Webhooks {
		return sandbox.Invalid("webhook-host", "webhooks are off; turn them on with webhooks")
	}
	if s.Burst > 0 && s.Rate == 0 {
		return sandbox.Invalid("burst", "needs a rate; set rate as well")
	}
	if s.NoWarm && (len(s.Warm) > 0 || s.WarmMemory > 0 || s.WarmCPUs > 0 || s.WarmPerKey) {
		return sandbox.Invalid("no-warm", "it contradicts warm, warm-memory, warm-cpus and warm-per-key")
	}
	for _, name := range s.Env {
		if name == "" || strings.ContainsAny(name, "= \t\n\x00") {
			return sandbox.Invalid("allow-env", "%q is not the name of a variable", name)
		}
	}
	if s.Dir != "" {
		if err := plainDirectory("dir", s.Dir); err != nil {
			return err
		}
	}
	_, err := s.Bounds()
	return err
}

// Bounds are the bounds of every network of a request.
func (s *Settings) Bounds() (network.Bounds, error) {
	most := s.Network.Clone()
	if most.IsZero() {
		most.Mode = network.Localhost
	}
	b := network.Bounds{Ceiling: &most, NoPublish: !s.Publish}
	for _, text := range s.Forbidden {
		p, err := ParsePrefix(text)
		if err != nil {
			return b, sandbox.Invalid("forbid-network", "%q: %w", text, err)
		}
		b.Forbidden = append(b.Forbidden, p)
	}
	for _, text := range s.Registries {
		name, rule, err := ParseRegistry(text)
		if err != nil {
			return b, sandbox.Invalid("registries", "%q: %w", text, err)
		}
		if b.Registries == nil {
			b.Registries = map[string][]string{}
		}
		b.Registries[name] = append(b.Registries[name], rule)
	}
	if _, err := most.Compile(network.Bounds{Registries: b.Registries}); err != nil {
		return b, sandbox.Invalid("max-network", "%w", err)
	}
	if s.Publish && !most.Complete().HasRules() {
		return b, sandbox.Invalid("allow-publish", "published ports need a network; set max-network to allow, full or learn")
	}
	return b, nil
}

// ParsePrefix reads an address or a CIDR prefix.
func ParsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Masked() != p || p.Addr().Is4In6() {
		return p, errors.New("not an address or a prefix; write it like 10.0.0.0/8")
	}
	return p, nil
}

// ParseRegistry reads NAME=RULE.
func ParseRegistry(text string) (name, rule string, err error) {
	name, rule, found := strings.Cut(text, "=")
	if !found {
		return "", "", errors.New("not a registry and its host; write it like npm=npm.example.com:443")
	}
	if err := (network.Policy{Registries: []string{name}}).Validate(); err != nil {
		return "", "", err
	}
	return name, rule, network.Policy{Allow: []string{rule}}.Validate()
}

// plainDirectory accepts a clean absolute path.
func plainDirectory(field, dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return sandbox.Invalid(field, "%q is not a plain absolute path", dir)
	}
	return nil
}

// Changes returns the flags of the settings that differ and that a running server can not change.
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

// ParseLevel reads a log level.
func ParseLevel(text string) (slog.Level, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) || level.UnmarshalText([]byte(text)) != nil {
		return 0, fmt.Errorf("unknown value; use one of debug, info, warn, error")
	}
	return level, nil
}
