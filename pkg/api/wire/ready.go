package wire

import "github.com/sandbox-run/sandbox-run/pkg/sandbox"

// PathTalk is the path of interactive runs: one run over a WebSocket of its own. The first message is a Run, then Subprotocol
// holds, and the run ends with the connection. The server keeps nothing of it. A Ready precedes the first event.
const PathTalk = PathRun + "/ws"

// KindReady is the kind of a Ready.
const KindReady = "ready"

// Ready describes the sandbox and its isolation before the program starts.
type Ready struct {
	Kind      string            `json:"kind"`
	Run       string            `json:"run"` // its id
	Language  string            `json:"language"`
	Version   string            `json:"language_version"`
	Image     string            `json:"image,omitempty"`
	Isolation sandbox.Isolation `json:"isolation"`
	// Window is the number of bytes of stdin that the client may have sent without an acknowledgement, so that later messages are
	// not delayed; 0: the server acknowledges nothing.
	Window uint64 `json:"window,omitempty"`
}
