package postgres

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Session is a server, and one psql that stays connected to it and executes cells. Between the two, a relay reads the messages:
//
//	psql ── Q(query) ───────► relay ──► server     the query that names the mark is the relay's: the cell has ended
//	psql ◄── E(error) Z(ready) ─ relay ◄── server
//	                           relay ── Q ──► server     questions, while psql waits for a cell
type Session struct {
	o        Options
	dir      string
	server   *server
	listener net.Listener
	psql     *exec.Cmd
	commands io.WriteCloser // of psql
	exited   chan struct{}  // closed when psql has ended
	mark     string         // a query that nothing else sends
	marks    chan struct{}  // one for each query of the mark

	mu          sync.Mutex
	cell        *cell    // that runs; or nil
	interrupted bool     // the cell that runs or is about to run
	link        *link    // the last connection of psql
	dropping    *results // of a question; nil: messages are psql's
}

var _ session.Interpreter = (*Session)(nil)

// cell is what the relay has seen of a cell.
type cell struct {
	query     string          // the last one
	completed bool            // its script has come to its end
	refused   bool            // a query after the interrupt
	error     map[byte]string // fields of the last error; nil: none
}

// canceled is the SQLSTATE of a query that was interrupted.
const canceled = "57014"

// completed follows the mark in the query after a script that has come to its end.
const completed = " completed"

// link is a connection of psql.
type link struct {
	client, server net.Conn
	key            [8]byte // with which a request to cancel names the connection
	version        string
	state          byte // of the transaction: I, T or E
}

// OpenSession starts a server and psql. The caller closes the Session.
func OpenSession(o Options) (_ *Session, err error) {
	s := &Session{o: o, mark: "SELECT '" + rand.Text() + "'", marks: make(chan struct{}), exited: make(chan struct{})}
	if s.server, s.dir, err = startCopy(o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.server.stop()
		}
	}()
	between := filepath.Join(s.dir, "psql")
	if err := os.Mkdir(between, 0o700); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("unix", filepath.Join(between, socketName)); err != nil {
		return nil, err
	}
	go s.accept()
	s.o.In = nil
	s.psql = psqlCommand(s.o, between)
	if s.commands, err = s.psql.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.psql.Start(); err != nil {
		return nil, fmt.Errorf("psql: %w", err)
	}
	go func() {
		_ = s.psql.Wait() // its messages have the reason
		close(s.exited)
	}()
	if !s.await() {
		return nil, fmt.Errorf("psql: %s", s.psql.ProcessState)
	}
	return s, nil
}

// Close ends psql and the server.
func (s *Session) Close() {
	_ = s.commands.Close()
	_ = s.psql.Process.Kill()
	<-s.exited
	_ = s.listener.Close()
	s.server.stop()
}

// await waits until psql has executed all commands and written its output, which a query flushes: after a script that has come to its end,
// that of the mark is the second one. It returns false if psql has ended.
func (s *Session) await() bool {
	for range 2 {
		_, _ = io.WriteString(s.commands, s.mark+";\n") // an error is the end of psql
		select {
		case <-s.marks:
		case <-s.exited:
			return false
		}
		s.mu.Lock()
		flushed := s.cell != nil && s.cell.completed
		s.mu.Unlock()
		if flushed {
			break
		}
	}
	return true
}

// Version is the version of the server.
func (s *Session) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return ""
	}
	version, _, _ := strings.Cut(s.link.version, " ") // Debian adds its own
	return version
}

// Execute executes a cell as a script, which ends at its first error.
func (s *Session) Execute(code string) (done protocol.Done, quit bool) {
	file := filepath.Join(s.dir, "cell")
	if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
		fmt.Fprintln(s.o.Err, err)
		return protocol.Done{Status: 1, Error: &protocol.Error{Name: "PostgreSQL error", Message: err.Error()}}, false
	}
	s.mu.Lock()
	c := &cell{}
	s.cell = c
	skip := s.interrupted
	s.mu.Unlock()
	died := false
	if !skip {
		// The option takes effect with the next line: psql itself does not end at an error of the script, but drops the rest of the line.
		_, _ = io.WriteString(s.commands, `\set ON_ERROR_STOP 1 \\ \i '`+file+"' \\\\ "+s.mark+completed+";\n\\set ON_ERROR_STOP 0\n")
		died = !s.await()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cell = nil
	switch {
	case died:
		return protocol.Done{Error: &protocol.Error{Name: "psql error", Message: "psql has lost its server, or was ended"}}, true
	case c.completed:
		done.OK = true
	case s.interrupted && (skip || c.refused || c.error['C'] == canceled):
		done = protocol.Done{Status: 1, Interrupted: true, Error: &protocol.Error{Name: "interrupted", Message: c.error['M']}}
	case c.error != nil:
		done = protocol.Done{Status: 1, Error: &protocol.Error{
			Name: c.error['S'] + " " + c.error['C'], Message: c.error['M'], Line: c.line(code),
		}}
	default: // a command of psql, which has printed why
		done = protocol.Done{Status: 1, Error: &protocol.Error{Name: "psql error"}}
	}
	return done, false
}

// line returns the line of the cell to which the last error refers; 0 if it is not known.
func (c *cell) line(code string) int {
	at := strings.Index(code, c.query)
	if at < 0 || c.query == "" {
		return 0
	}
	position := 1 // in characters
	_, _ = fmt.Sscan(c.error['P'], &position)
	before := []rune(c.query)
	before = before[:min(len(before), max(position-1, 0))]
	return 1 + strings.Count(code[:at], "\n") + strings.Count(string(before), "\n")
}

// Interrupt asks the server to cancel the query, and each further one of the cell.
func (s *Session) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = true
	go func() { // the server ignores a request that arrives before its query
		for s.cancelQuery() {
			time.Sleep(cancelAgain)
		}
	}()
}

// cancelAgain is the time after which a cell that was interrupted, and has not ended, is interrupted again.
const cancelAgain = 50 * time.Millisecond

// cancelQuery returns false if no interrupt is in effect.
func (s *Session) cancelQuery() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.interrupted {
		s.cancel()
	}
	return s.interrupted
}

// Resume takes interrupts back.
func (s *Session) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = false
}

// cancel sends the server's request to cancel. The caller holds mu.
func (s *Session) cancel() {
	if s.link == nil {
		return
	}
	c, err := net.Dial("unix", filepath.Join(s.dir, socketName))
	if err != nil {
		return // the server has ended
	}
	defer c.Close()
	const cancelRequest = 80877102
	request := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 16), cancelRequest)
	_, _ = c.Write(append(request, s.link.key[:]...))
	_, _ = c.Read(make([]byte, 1)) // the server closes the connection when it has sent the signal
}

func (s *Session) accept() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		go s.relay(client)
	}
}

// relay connects psql with the server. The end of one side ends the other.
func (s *Session) relay(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", filepath.Join(s.dir, socketName))
	if err != nil {
		return // psql reports the closed connection
	}
	defer server.Close()
	l := &link{client: client, server: server}
	go func() {
		_ = pass(server, client, false, func(kind byte, body []byte, _ bool) bool { return s.request(l, kind, body) })
		_ = server.(*net.UnixConn).CloseWrite()
	}()
	_ = pass(client, server, true, func(kind byte, body []byte, isWhole bool) bool { return s.answer(l, kind, body, isWhole) })
}

// request reads a message of psql. It answers the query of the mark itself, as an empty one.
func (s *Session) request(l *link, kind byte, body []byte) bool {
	if kind != 'Q' {
		return true
	}
	query := strings.Trim(string(body), "\x00; \n")
	s.mu.Lock()
	rest, isMark := strings.CutPrefix(query, s.mark)
	if !isMark {
		if s.cell != nil {
			s.cell.query = query
		}
		isLate := s.interrupted && s.cell != nil
		if isLate {
			s.cell.refused = true
		}
		s.mu.Unlock()
		if isLate { // the interrupt has found no query
			_, _ = l.client.Write(refusal(l.state))
		}
		return !isLate
	}
	state := cmp.Or(l.state, 'I')
	if s.cell != nil && rest == completed {
		s.cell.completed = true
	}
	s.mu.Unlock()
	_, _ = l.client.Write([]byte{'I', 0, 0, 0, 4, 'Z', 0, 0, 0, 5, state}) // psql reports a closed connection
	if rest != "" {
		return false
	}
	select {
	case s.marks <- struct{}{}:
	case <-s.exited:
	}
	return false
}

// answer reads a message of the server.
func (s *Session) answer(l *link, kind byte, body []byte, isWhole bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case kind == 'K' && len(body) == len(l.key):
		copy(l.key[:], body)
		s.link = l
	case kind == 'Z' && len(body) == 1:
		l.state = body[0]
	case kind == 'E' && isWhole && s.cell != nil:
		s.cell.error = fields(body)
	case kind == 'S':
		if version, found := strings.CutPrefix(string(body), "server_version\x00"); found {
			l.version = strings.TrimSuffix(version, "\x00")
		}
	}
	if s.dropping != nil {
		return !s.dropping.add(kind, body)
	}
	return true
}

// refusal is the answer to a query after an interrupt.
func refusal(state byte) []byte {
	const text = "SERROR\x00VERROR\x00C" + canceled + "\x00Mcanceling statement due to user request\x00\x00"
	m := append([]byte{'E'}, binary.BigEndian.AppendUint32(nil, uint32(len(text)+4))...)
	return append(append(m, text...), 'Z', 0, 0, 0, 5, state)
}

// fields returns the fields of an error by their letter.
func fields(body []byte) map[byte]string {
	all := map[byte]string{}
	for field := range strings.SplitSeq(string(body), "\x00") {
		if len(field) > 1 {
			all[field[0]] = strings.ToValidUTF8(field[1:], "?")
		}
	}
	return all
}

// results are the rows of a question.
type results struct {
	rows [][]string
	done chan struct{} // closed with the last message
}

// add reads a message of the server and reports that it is not for psql.
func (r *results) add(kind byte, body []byte) bool {
	switch kind {
	case 'D':
		m := message(body)
		row := make([]string, m.number(2))
		for i := range row {
			if n := int32(m.number(4)); n >= 0 && int(n) <= len(m) {
				row[i], m = strings.ToValidUTF8(string(m[:n]), "?"), m[n:]
			}
		}
		r.rows = append(r.rows, row)
	case 'Z':
		close(r.done)
	}
	return true
}

// rows asks the server a question on psql's connection, which waits for a cell. There are none in a transaction that has failed.
func (s *Session) rows(query string) [][]string {
	s.mu.Lock()
	l := s.link
	if l == nil || l.state == 'E' {
		s.mu.Unlock()
		return nil
	}
	r := &results{done: make(chan struct{})}
	s.dropping = r
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.dropping = nil
		s.mu.Unlock()
	}()
	text := append([]byte{'Q'}, binary.BigEndian.AppendUint32(nil, uint32(len(query)+5))...)
	if _, err := l.server.Write(append(append(text, query...), 0)); err != nil {
		return nil
	}
	select {
	case <-r.done:
		return r.rows
	case <-s.exited:
		return nil
	}
}
