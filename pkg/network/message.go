package network

// Messages between a supervisor and the process of a network (sandbox-net), each a line of JSON on a socket:
//
//	supervisor → config{policy, bounds, limits}   once, with the descriptor of the device
//	process    → {ready}                          packets are being handled
//	process    → {refused}                        the first refusal of a kind
//	supervisor    closes its side                 the sandbox has ended
//	process    → {report}                         everything; then it exits
type (
	// Config is what the process is to do.
	Config struct {
		Policy Policy `json:"policy"`
		Bounds Bounds `json:"bounds"`
		Limits Limits `json:"limits"`
	}
	// Message is what the process says. One field is set.
	Message struct {
		Ready   bool     `json:"ready,omitempty"`
		Refused *Refused `json:"refused,omitempty"`
		Report  *Report  `json:"report,omitempty"`
		Error   string   `json:"error,omitempty"` // it could not start
	}
)

// MaxMessage bounds a line.
const MaxMessage = 1 << 20
