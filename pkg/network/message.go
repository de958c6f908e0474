package network

// Messages between a supervisor and the process of a network (sandbox-net), each a line of JSON on a socket:
//
//	supervisor → config{policy, bounds, limits}   once, with the descriptors of the device and of the listeners of published ports
//	process    → {started}                        all its threads exist
//	process    → {refused}                        the first refusal of a kind; the stack is built when the first packet comes
//	supervisor → a line feed                       any number; each has an answer
//	process    → {so_far}                         what it did so far
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
		Started bool     `json:"started,omitempty"`
		Refused *Refused `json:"refused,omitempty"`
		SoFar   *Report  `json:"so_far,omitempty"`
		Report  *Report  `json:"report,omitempty"`
		Error   string   `json:"error,omitempty"` // it could not start
	}
)

// ProcessName is the name of the executable, and argv[0] of the process.
const ProcessName = "sandbox-net"

// Contained reports that this executable is the process if its argv[0] is ProcessName: package stack is linked.
var Contained bool

// MaxThreads is the most threads that the process has at its start. They count in the sandbox's limit of processes, which gets room for
// as many as there are.
const MaxThreads = 24

// MaxMessage bounds a line.
const MaxMessage = 1 << 20
