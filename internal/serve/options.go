package serve

import (
	"io"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options say how to serve.
type Options struct {
	Settings *operator.Settings
	// Again reads the settings once more, after SIGHUP.
	Again   func() (*operator.Settings, error)
	Version string
	// Err is where logs go, as JSON, and the line that says it is ready.
	Err io.Writer
	// Exit ends the process at once, after repeated signals.
	Exit func(code int)
}

// Report is what a server would be.
type Report struct {
	Listen  []Address    `json:"listen"`
	Keys    int          `json:"keys"`
	Backend string       `json:"backend"`
	Tier    sandbox.Tier `json:"tier"`
	Require sandbox.Tier `json:"require"`
	Notes   []string     `json:"notes"`
}

// Address is one place that a server is reached at.
type Address struct {
	Address string `json:"address"`
	Kind    string `json:"kind"` // unix, loopback or exposed
	TLS     bool   `json:"tls"`
	Keys    bool   `json:"keys"` // whether a key is needed there
}
