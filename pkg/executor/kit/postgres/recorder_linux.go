package postgres

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/tables"
)

// recorder passes the messages of psql and its server on, and records the results of the scripts' queries. psql executes every statement
// once and prints it in its own way; only the messages have the results as data.
//
//	psql ── Q(query) ──► recorder ──► server
//	psql ◄── T(columns) D(row) … C(complete) │ E(error) ── recorder ◄── server
type recorder struct {
	scripts string // their text, which tells their queries from those that psql's commands send

	mu        sync.Mutex
	tables    tables.Set
	current   *tables.Table // nil between results
	types     []uint32      // of its columns
	binary    []bool
	isOwn     bool // the query is psql's own
	completed int  // statements of the scripts
}

// maxMessage bounds the messages that are read as a whole; of a longer row only the number is recorded.
const maxMessage = 8 << 20

// serve accepts connections until the listener is closed, and returns when all of them have ended.
func (r *recorder) serve(l net.Listener, server string) {
	var all sync.WaitGroup
	for {
		client, err := l.Accept()
		if err != nil {
			break
		}
		all.Go(func() { r.connect(client, server) })
	}
	all.Wait()
}

// connect connects a client with the server. The end of one side ends the other.
func (r *recorder) connect(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("unix", address)
	if err != nil {
		return // psql reports the closed connection
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_ = pass(server, client, false, r.request)
		_ = server.(*net.UnixConn).CloseWrite()
	})
	_ = pass(client, server, true, r.answer)
	_ = client.Close()
	both.Wait()
}

// pass copies messages to their end, and shows each to see before, which returns false for a message that is not passed on. The first
// message of a client has no type.
func pass(to io.Writer, from io.Reader, isTyped bool, see func(kind byte, body []byte, isWhole bool) bool) error {
	in, out := bufio.NewReaderSize(from, 64<<10), bufio.NewWriterSize(to, 64<<10)
	defer out.Flush()
	for {
		if in.Buffered() == 0 { // the next read may wait
			if err := out.Flush(); err != nil {
				return err
			}
		}
		head := make([]byte, 4, 5)
		kind := byte(0)
		if isTyped {
			head = head[:5]
		}
		if _, err := io.ReadFull(in, head); err != nil {
			return err
		}
		if isTyped {
			kind = head[0]
		}
		isTyped = true
		length := int64(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
		if length < 0 {
			return errors.New("malformed message")
		}
		if length > maxMessage {
			_ = see(kind, nil, false) // passed on in any case
			if _, err := out.Write(head); err != nil {
				return err
			}
			if _, err := io.CopyN(out, in, length); err != nil {
				return err
			}
			continue
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		if !see(kind, body, true) {
			continue
		}
		if _, err := out.Write(append(head, body...)); err != nil {
			return err
		}
	}
}

// request reads a message of psql.
func (r *recorder) request(kind byte, body []byte, _ bool) bool {
	if kind != 'Q' && kind != 'P' {
		return true
	}
	query := strings.TrimSpace(strings.TrimRight(string(body), "\x00"))
	r.mu.Lock()
	defer r.mu.Unlock()
	// The queries of \d and the like name every function with its schema.
	r.isOwn = kind == 'Q' && strings.Contains(query, "pg_catalog.") && !strings.Contains(r.scripts, query)
	return true
}

// answer reads a message of the server. It ignores a malformed one, of which psql complains.
func (r *recorder) answer(kind byte, body []byte, isWhole bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.isOwn:
	case kind == 'T' && isWhole:
		r.start(body)
	case kind == 'D' && r.current != nil && !isWhole:
		r.current.Skip()
	case kind == 'D' && r.current != nil:
		r.add(body)
	case kind == 'C' || kind == 'I':
		r.current = nil
		r.completed++
	case kind == 'E' || kind == 'Z':
		r.current = nil
	}
	return true
}

func (r *recorder) start(body []byte) {
	m := message(body)
	n := int(m.number(2))
	var columns, types []string
	r.types, r.binary = nil, nil
	for range n {
		name, rest, ok := strings.Cut(string(m), "\x00")
		if !ok {
			return
		}
		m = message(rest)
		m.number(4) // table
		m.number(2) // column
		id := m.number(4)
		m.number(2) // size
		m.number(4) // modifier
		r.binary = append(r.binary, m.number(2) == 1)
		columns, types, r.types = append(columns, name), append(types, typeNames[id]), append(r.types, id)
	}
	r.current = r.tables.Start(columns, types)
}

func (r *recorder) add(body []byte) {
	m := message(body)
	n := int(m.number(2))
	if n != len(r.types) {
		return
	}
	row := make([]tables.Cell, n)
	for i := range row {
		length := int32(m.number(4))
		switch {
		case length < 0:
			row[i] = tables.Cell{Text: "null", IsRaw: true}
		case int(length) > len(m):
			return
		default:
			row[i] = cellOf(r.types[i], r.binary[i], string(m[:length]))
			m = m[length:]
		}
	}
	r.current.Add(row)
}

// cellOf returns a value as JSON: numbers and booleans as such, infinities and all else as text.
func cellOf(id uint32, isBinary bool, text string) tables.Cell {
	switch {
	case isBinary:
		return tables.Cell{Text: `\x` + hex.EncodeToString([]byte(text))}
	case id == boolType:
		return tables.Cell{Text: map[string]string{"t": "true", "f": "false"}[text], IsRaw: true}
	case isNumber(id):
		return tables.Cell{Text: text, IsRaw: json.Valid([]byte(text))}
	}
	return tables.Cell{Text: strings.ToValidUTF8(text, "\uFFFD")}
}

// message is the rest of a message.
type message []byte

// number reads a number of some bytes; 0 beyond the end.
func (m *message) number(size int) (n uint32) {
	if len(*m) < size {
		*m = nil
		return 0
	}
	for _, b := range (*m)[:size] {
		n = n<<8 | uint32(b)
	}
	*m = (*m)[size:]
	return n
}

const boolType = 16

// typeNames are the common types by their object id; others have no name here.
var typeNames = map[uint32]string{
	boolType: "boolean", 17: "bytea", 18: "char", 19: "name", 20: "bigint", 21: "smallint", 23: "integer", 25: "text", 26: "oid", 114: "json",
	700: "real", 701: "double precision", 1042: "character", 1043: "character varying", 1082: "date", 1083: "time", 1114: "timestamp",
	1184: "timestamp with time zone", 1186: "interval", 1700: "numeric", 2950: "uuid", 3802: "jsonb",
}

// isNumber reports whether values of a type are numbers.
func isNumber(id uint32) bool {
	switch id {
	case 20, 21, 23, 26, 700, 701, 1700:
		return true
	}
	return false
}
