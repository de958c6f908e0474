package wire

import "github.com/sandbox-run/sandbox-run/pkg/sandbox"

// PathTalk is where a run is asked for over a WebSocket that is its own. The first message is a Run; from then on all is as Subprotocol says, and the run ends
// with the connection. Nothing of it is kept. Before its first event there is a Ready.
const PathTalk = PathRun + "/ws"

// KindReady is the kind of a Ready.
const KindReady = "ready"

// Ready says what a program is about to run on, and behind which walls: the sandbox is made, and nothing has run in it.
type Ready struct {
	Kind      string            `json:"kind"`
	Run       string            `json:"run"` // its id
	Language  string            `json:"language"`
	Version   string            `json:"language_version"`
	Image     string            `json:"image,omitempty"`
	Isolation sandbox.Isolation `json:"isolation"`
	// Window is how many bytes of stdin may be on their way, sent and not acknowledged, without holding up messages behind them; 0: nothing is acknowledged.
	Window uint64 `json:"window,omitempty"`
}
