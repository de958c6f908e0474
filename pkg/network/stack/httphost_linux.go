package stack

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// maxHead bounds the head of an HTTP request.
const maxHead = 64 << 10

var (
	errNotHTTP = errors.New("it is no HTTP/1 request")
	errFraming = errors.New("the end of its HTTP request is ambiguous")
)

// requests follows the HTTP/1 requests of a connection and yields the host of each. It accepts a strict form of the protocol: where
// two parsers could disagree on the next request, the connection is refused.
type requests struct {
	state   requestState
	left    int64 // bytes of the body or chunk
	first   bool  // the first request has been seen
	upgrade bool  // the first request asks for another protocol
}

type requestState int

const (
	inHead requestState = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
)

// next returns how many bytes of data may be passed on, and, if they end with the head of a request, the request's host. n = 0
// means that more data is needed.
func (r *requests) next(data []byte) (n int, host string, err error) {
	switch r.state {
	case inBody, inChunk:
		n = int(min(r.left, int64(len(data))))
		if r.left -= int64(n); r.left == 0 {
			if r.state == inBody {
				r.state = inHead
			} else {
				r.state = inChunkEnd
			}
		}
		return n, "", nil
	case inHead:
		return r.head(data)
	}
	line, found := cutLine(data)
	if !found {
		if len(data) > maxHead {
			return 0, "", errFraming
		}
		return 0, "", nil
	}
	if bytes.ContainsAny(line, "\r\n\x00") {
		return 0, "", errFraming // some parsers end a line there
	}
	n = len(line) + 2
	switch r.state {
	case inChunkSize:
		size, _, _ := strings.Cut(string(line), ";")
		r.left, err = strconv.ParseInt(size, 16, 63)
		if err != nil || size[0] == '+' || size[0] == '-' {
			return 0, "", errFraming
		}
		if r.state = inChunk; r.left == 0 {
			r.state = inTrailer
		}
	case inChunkEnd:
		if len(line) > 0 {
			return 0, "", errFraming
		}
		r.state = inChunkSize
	default: // trailer
		if len(line) == 0 {
			r.state = inHead
		}
	}
	return n, "", nil
}

// cutLine returns the line before CR LF.
func cutLine(data []byte) (line []byte, found bool) {
	i := bytes.Index(data, []byte("\r\n"))
	if i < 0 {
		return nil, false
	}
	return data[:i], true
}

func (r *requests) head(data []byte) (n int, host string, err error) {
	end := bytes.Index(data, []byte("\r\n\r\n"))
	if end < 0 {
		// What can not become a request is refused at once: a client that waits for the server's greeting would hang.
		line, _, whole := bytes.Cut(data, []byte("\n"))
		line, crlf := bytes.CutSuffix(line, []byte("\r"))
		if len(data) > maxHead || (whole && !(crlf && isRequestLine(line))) || !isMethodStart(data) {
			return 0, "", errNotHTTP
		}
		return 0, "", nil
	}
	if r.upgrade {
		return 0, "", errFraming // a second request before the answer to an upgrade
	}
	head := data[:end]
	if bytes.ContainsAny(bytes.ReplaceAll(head, []byte("\r\n"), nil), "\r\n\x00") {
		return 0, "", errNotHTTP
	}
	lines := strings.Split(string(head), "\r\n")
	if !isRequestLine([]byte(lines[0])) {
		return 0, "", errNotHTTP
	}
	target := strings.Split(lines[0], " ")[1]
	var length, coding, upgrade string
	var hosts, lengths, codings int
	for _, line := range lines[1:] {
		key, value, found := strings.Cut(line, ":")
		if !found || !isToken(key) {
			return 0, "", errNotHTTP // folded lines, too; some servers end the head at another character
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(key) {
		case "host":
			host = value
			hosts++
		case "content-length":
			length = value
			lengths++
		case "transfer-encoding":
			coding = value
			codings++
		case "upgrade":
			upgrade = value
		}
	}
	if hosts != 1 || lengths > 1 || codings > 1 || (lengths > 0 && codings > 0) {
		return 0, "", errFraming
	}
	if strings.HasPrefix(lines[0], "CONNECT ") {
		return 0, "", errors.New("it asks for a tunnel (CONNECT)")
	}
	if host, err = requestHost(host, target); err != nil {
		return 0, "", err
	}
	switch {
	case codings > 0:
		if !strings.EqualFold(coding, "chunked") || strings.HasSuffix(lines[0], "/1.0") { // some servers have no codings in HTTP/1.0
			return 0, "", errFraming
		}
		r.state = inChunkSize
	case lengths > 0:
		r.left, err = strconv.ParseInt(length, 10, 63)
		if err != nil || length[0] == '+' || length[0] == '-' {
			return 0, "", errFraming
		}
		if r.left > 0 {
			r.state = inBody
		}
	}
	if upgrade != "" {
		if r.first || r.state != inHead {
			return 0, "", errFraming
		}
		r.upgrade = true
	}
	r.first = true
	return end + 4, host, nil
}

// isToken reports whether s can be the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		isLetter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !isLetter && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// isMethodStart reports whether data can be the start of a request line: upper-case letters, then a space.
func isMethodStart(data []byte) bool {
	for i, c := range data {
		if c == ' ' {
			return i > 0
		}
		if (c < 'A' || c > 'Z') && c != '-' || i >= 32 {
			return false
		}
	}
	return true
}

func isRequestLine(line []byte) bool {
	parts := strings.Split(string(line), " ")
	isControl := func(r rune) bool { return r < ' ' || r == 0x7f }
	return len(parts) == 3 && isMethodStart([]byte(parts[0]+" ")) && parts[1] != "" && !strings.ContainsFunc(parts[1], isControl) &&
		(parts[2] == "HTTP/1.1" || parts[2] == "HTTP/1.0")
}

// requestHost returns the host without its port. A target with a host of its own must name the same.
func requestHost(host, target string) (string, error) {
	if !strings.HasPrefix(target, "/") && target != "*" {
		scheme, rest, found := strings.Cut(target, "://")
		authority, _, _ := strings.Cut(rest, "/")
		if !found || !strings.EqualFold(scheme, "http") || !strings.EqualFold(authority, host) {
			return "", errors.New("its target and its Host differ")
		}
	}
	name, port, hasPort := strings.Cut(host, ":")
	if name == "" || (hasPort && strings.Trim(port, "0123456789") != "") {
		return "", errNotHTTP
	}
	return name, nil
}
