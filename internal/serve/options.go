package serve

import (
	"io"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// Options configure Serve and Check.
type Options struct {
	Settings *operator.Settings
	// Again reads the settings anew after SIGHUP.
	Again   func() (*operator.Settings, error)
	Version string
	// Err receives the log as JSON, and one line when the server accepts requests.
	Err io.Writer
	// Exit ends the process at once, after repeated signals.
	Exit func(code int)
}

// Report describes the server that Serve would start.
type Report struct {
	Listen  []Address    `json:"listen"`
	Keys    int          `json:"keys"`
	Backend string       `json:"backend"`
	Tier    sandbox.Tier `json:"tier"`
	Require sandbox.Tier `json:"require"`
	Notes   []string     `json:"notes"`
}

// Address is one address of a server.
type Address struct {
	Address string `json:"address"`
	Kind    string `json:"kind"` // unix, loopback or exposed
	TLS     bool   `json:"tls"`
	Keys    bool   `json:"keys"` // requests need a key
}

// sessionOptions returns the options of sessions; nil: there are none.
func (r *running) sessionOptions() *api.SessionOptions {
	s := r.settings
	if s.MaxSessions < 0 {
		return nil
	}
	return &api.SessionOptions{Executor: r.stack.Executor, Bounds: session.Options{
		Sessions: s.MaxSessions, PerOwner: s.SessionsPerKey, Idle: s.SessionIdle, Lifetime: s.SessionLifetime, Waiting: s.SessionQueue,
		Stock: !s.NoWarm,
	}}
}
