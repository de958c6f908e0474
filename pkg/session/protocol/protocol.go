// Package protocol is the protocol between a session and its driver: the code that executes cells inside the sandbox.
//
// What. Both sides write frames to one stream socket. The driver starts with it as standard input, moves it to [Descriptor], close-on-exec,
// and puts /dev/null in its place before it executes a cell. A frame is a header line and a body:
//
//	KIND ID LENGTH [ARGUMENT]\n  LENGTH bytes
//
// ID is the number of the cell or of the question, in decimal. Answers carry the ID of what they answer. Headers are text, and bodies of the
// supervisor are code or text as it is, so that a shell can read them; bodies of the driver are JSON, or empty.
//
//	supervisor → driver                                      driver → supervisor
//	                                                         ready 0      Ready       first, once
//	execute ID       body: the code                          display ID   Display     any number, while the cell runs
//	                                                         input ID     Input       the cell asks for a line, and waits
//	input ID         body: the line, without its end
//	end_input ID     no more lines: end of file
//	                                                         install ID   Install     the cell asks for packages, and waits
//	installed ID     body: the directory of packages, or empty after a failure, whose text the session has printed already
//	interrupt ID     only with Ready.Interrupt == "message"
//	                                                         done ID      Done        after all output of the cell was flushed
//	check ID         body: code                              reply ID     Checked     is the code a complete cell?
//	complete ID CURSOR   body: code; CURSOR counts bytes     reply ID     Completed
//	inspect ID       body: a name or an expression           reply ID     Inspected
//	variables ID                                             reply ID     Variables
//	packages ID      body: a directory to import from        reply ID     {}
//	fork ID          body: a directory with named pipes      reply ID     Forked      see Forked
//	close ID         the driver exits with 0
//
// The driver answers one frame after the other. While a cell runs it reads only input, end_input, installed and interrupt. An interrupt is
// SIGINT to every process of the driver's phase, or the frame interrupt, as Ready says; it may arrive when no cell runs, and is then ignored.
//
// Place in the flow. pkg/session speaks it; drivers are in pkg/executor/lang/…/session and in the kit.
//
// Lifecycle. A [Conn] does not own the socket.
//
// Concurrency. One goroutine reads from a Conn; any number may write.
//
// Limits. The driver shares its process with foreign code, which can write frames, too. What a driver says is therefore checked against the
// bounds of this package, and can change what its own session shows, and nothing else: verdicts of limits, metrics and isolation are the
// supervisor's own measurements. A frame out of bounds ends the driver. Tighter than MaxBody are the bounds of ready (4 KiB), reply (2 MiB),
// the forms of a display (64) and the requests of install (64 KiB).
package protocol

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Descriptor is where a driver moves its end of the socket.
const Descriptor = 63

// Version is the version of the protocol.
const Version = 1

// Bounds of frames.
const (
	MaxHeader = 128
	MaxBody   = 8 << 20 // of the driver; displays are the largest
)

// Kind is the first word of a frame.
type Kind string

// The kinds of frame.
const (
	KindReady     Kind = "ready"
	KindExecute   Kind = "execute"
	KindDisplay   Kind = "display"
	KindInput     Kind = "input"
	KindEndInput  Kind = "end_input"
	KindInstall   Kind = "install"
	KindInstalled Kind = "installed"
	KindInterrupt Kind = "interrupt"
	KindDone      Kind = "done"
	KindCheck     Kind = "check"
	KindComplete  Kind = "complete"
	KindInspect   Kind = "inspect"
	KindVariables Kind = "variables"
	KindPackages  Kind = "packages"
	KindFork      Kind = "fork"
	KindClose     Kind = "close"
	KindReply     Kind = "reply"
)

// Ready is what a driver says of itself.
type Ready struct {
	Protocol int    `json:"protocol"`
	Language string `json:"language"`
	Version  string `json:"version"`             // of the interpreter
	Features []Kind `json:"features,omitempty"`  // of check, complete, inspect, variables, packages, fork, install
	How      string `json:"interrupt,omitempty"` // "signal" (default) or "message"
	Banner   string `json:"banner,omitempty"`    // for people, such as: IPython 8.5
}

// Display is a value for the user. Data has the same value in several types of content (MIME); text/plain is always there.
type Display struct {
	Data   map[string]json.RawMessage `json:"data"`
	Meta   map[string]json.RawMessage `json:"metadata,omitempty"`
	Result bool                       `json:"result,omitempty"` // the value of the cell's last expression
	Name   string                     `json:"display_id,omitempty"`
	Update bool                       `json:"update,omitempty"` // replaces the display with that name
}

// Text returns the value as text.
func (d *Display) Text() string {
	var s string
	_ = json.Unmarshal(d.Data["text/plain"], &s) // a value of another type has no text
	return s
}

// Input asks for a line.
type Input struct {
	Prompt   string `json:"prompt"`
	Password bool   `json:"password,omitempty"`
}

// Install asks for packages.
type Install struct {
	Packages []string `json:"packages"`
}

// Done reports the end of a cell.
type Done struct {
	OK          bool   `json:"ok"`
	Status      int    `json:"status,omitempty"` // exit status of a shell's last command; otherwise 1 after an error
	Interrupted bool   `json:"interrupted,omitempty"`
	Error       *Error `json:"error,omitempty"`
}

// Error is an exception that a cell did not catch. Its text was printed to stderr as the language prints it.
type Error struct {
	Name    string `json:"name"`
	Message string `json:"message,omitempty"`
	Line    int    `json:"line,omitempty"` // of the cell; 0: not known
}

// Checked says whether code is a complete cell.
type Checked struct {
	Status string `json:"status"`           // "complete", "incomplete" or "invalid"
	Indent string `json:"indent,omitempty"` // for the next line of an incomplete cell
}

// Completed lists how the word before the cursor may go on: code[Start:End] is replaced by a match. Start and End count bytes.
type Completed struct {
	Matches []string `json:"matches"`
	Start   int      `json:"start"`
	End     int      `json:"end"`
}

// Inspected describes a value.
type Inspected struct {
	Found bool   `json:"found"`
	Text  string `json:"text,omitempty"`
}

// Variables lists the user's variables.
type Variables struct {
	Variables []Variable `json:"variables"`
	Truncated bool       `json:"truncated,omitempty"`
}

// Variable is a name in the session, with a short form of its value.
type Variable struct {
	Name  string `json:"name"`
	Type  string `json:"type,omitempty"`
	Value string `json:"value,omitempty"`
}

// Forked reports a second interpreter with the same state. The directory of the question has the named pipes stdout, stderr, to_driver and
// from_driver; the second interpreter uses the last two in place of the socket, and begins with ready. PID is its number in the sandbox.
type Forked struct {
	PID int `json:"pid"`
}

// Frame is one message.
type Frame struct {
	Kind Kind
	ID   uint64
	Arg  string
	Body []byte
}

// Decode reads the body, strictly: unknown fields and trailing data are errors. An empty body is the zero value.
func (f *Frame) Decode(v any) error {
	if len(f.Body) == 0 {
		return nil
	}
	if !utf8.Valid(f.Body) {
		return fmt.Errorf("%s: not UTF-8", f.Kind)
	}
	d := json.NewDecoder(strings.NewReader(string(f.Body)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", f.Kind, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: data after the end", f.Kind)
	}
	return nil
}

// Conn reads and writes frames.
type Conn struct {
	in *bufio.Reader

	mu  sync.Mutex // orders the writes
	out io.Writer
}

// NewConn returns a Conn over a stream.
func NewConn(s io.ReadWriter) *Conn { return &Conn{in: bufio.NewReaderSize(s, 4096), out: s} }

// ErrMalformed is the error of a frame that is out of bounds.
var ErrMalformed = errors.New("malformed frame")

// Read returns the next frame.
func (c *Conn) Read() (*Frame, error) {
	header, err := c.header()
	if err != nil {
		return nil, err
	}
	words := strings.Split(header, " ")
	if len(words) < 3 || len(words) > 4 {
		return nil, fmt.Errorf("%w: header %.40q", ErrMalformed, header)
	}
	id, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: header %.40q", ErrMalformed, header)
	}
	length, err := strconv.ParseUint(words[2], 10, 32)
	if err != nil || length > MaxBody {
		return nil, fmt.Errorf("%w: length in header %.40q", ErrMalformed, header)
	}
	f := &Frame{Kind: Kind(words[0]), ID: id}
	if len(words) == 4 {
		f.Arg = words[3]
	}
	if f.Body, err = readBody(c.in, int(length)); err != nil {
		return nil, err
	}
	return f, nil
}

// readBody takes memory as the bytes arrive: a length alone is no claim to it.
func readBody(in io.Reader, length int) ([]byte, error) {
	const step = 64 << 10
	body := make([]byte, 0, min(length, step))
	for len(body) < length {
		n := min(length-len(body), step)
		body = append(body, make([]byte, n)...)
		if _, err := io.ReadFull(in, body[len(body)-n:]); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// header reads a line, of at most MaxHeader bytes.
func (c *Conn) header() (string, error) {
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || err == nil && len(line) > MaxHeader {
		return "", fmt.Errorf("%w: header %.40q", ErrMalformed, line)
	}
	if err != nil {
		return "", err
	}
	return string(line[:len(line)-1]), nil
}

// Write sends a frame of the supervisor.
func (c *Conn) Write(kind Kind, id uint64, body string, arg ...string) error {
	frame := fmt.Appendf(nil, "%s %d %d", kind, id, len(body))
	for _, a := range arg {
		frame = append(append(frame, ' '), a...)
	}
	frame = append(append(frame, '\n'), body...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.Write(frame)
	return err
}

// WriteJSON sends a frame of a driver.
func (c *Conn) WriteJSON(kind Kind, id uint64, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Write(kind, id, string(body))
}
