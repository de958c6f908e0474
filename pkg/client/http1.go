package client

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// HTTP/1.1 for one server over one connection, written by hand: net/http and its dependencies would cost every start of the command more
// than the connection does.
//
//	request = METHOD SP path SP "HTTP/1.1" CRLF *( name ":" value CRLF ) CRLF [ body ]
//	answer  = "HTTP/1.1" SP code [ SP reason ] CRLF *( name ":" value CRLF ) CRLF [ body ]
//	body    = Content-Length bytes | *( size-in-hex CRLF bytes CRLF ) "0" CRLF *trailer CRLF | all until the end

// Bounds of an answer's head. Our servers send less.
const (
	maxLine       = 8 << 10
	maxHeaderSize = 64 << 10
	maxHeaders    = 128
	maxInterim    = 16 // interim answers (1xx)
)

// errMalformed is the cause of every answer that violates HTTP/1.1.
var errMalformed = errors.New("the answer is not HTTP/1.1")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// writeHead writes the request line and the headers.
func writeHead(w *bufio.Writer, host string, r *Request) error {
	if !isToken(r.Method) || !isTarget(r.Path) {
		return fmt.Errorf("request: invalid method %q or path %q", r.Method, r.Path)
	}
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.Path, host)
	for name, value := range r.Header {
		if !isToken(name) || strings.ContainsAny(value, "\r\n\x00") {
			return fmt.Errorf("request: invalid header %q: %q", name, value)
		}
		fmt.Fprintf(w, "%s: %s\r\n", name, value)
	}
	switch {
	case r.Body != nil && r.Length < 0:
		io.WriteString(w, "Transfer-Encoding: chunked\r\n") //nolint:errcheck // a bufio.Writer keeps its error
	case r.Body != nil || r.Method == "POST" || r.Method == "PUT":
		fmt.Fprintf(w, "Content-Length: %d\r\n", max(r.Length, 0))
	}
	_, err := io.WriteString(w, "\r\n")
	return err
}

// writeBody writes a body in the encoding that writeHead announced.
func writeBody(w *bufio.Writer, r *Request) error {
	if r.Body == nil {
		return w.Flush()
	}
	if r.Length >= 0 {
		n, err := io.Copy(w, io.LimitReader(r.Body, r.Length))
		if err == nil && n < r.Length {
			err = fmt.Errorf("request body: ended after %d of %d bytes", n, r.Length)
		}
		return errors.Join(err, w.Flush())
	}
	// Send the head now and each piece as soon as it is read: the server may wait for it.
	if err := w.Flush(); err != nil {
		return err
	}
	for buf := make([]byte, 32<<10); ; {
		n, err := r.Body.Read(buf)
		if n > 0 {
			fmt.Fprintf(w, "%x\r\n", n)
			w.Write(buf[:n])          //nolint:errcheck // a bufio.Writer keeps its error
			io.WriteString(w, "\r\n") //nolint:errcheck // as above
			if err := w.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			io.WriteString(w, "0\r\n\r\n") //nolint:errcheck // as above
			return w.Flush()
		}
		if err != nil {
			return err // without the last chunk the server knows that the body is incomplete
		}
	}
}

// readHead reads the head of an answer. It skips interim answers, except 101.
func readHead(r *bufio.Reader) (status int, h Header, err error) {
	for range maxInterim {
		if status, h, err = readOneHead(r); err != nil || status >= 200 || status == 101 {
			return status, h, err
		}
	}
	return 0, nil, malformed("more than %d interim answers", maxInterim)
}

func readOneHead(r *bufio.Reader) (status int, h Header, err error) {
	line, err := readLine(r)
	if err != nil {
		return 0, nil, err
	}
	if status, err = parseStatus(line); err != nil {
		return 0, nil, err
	}
	h = Header{}
	for size, count := 0, 0; ; count++ {
		if line, err = readLine(r); err != nil {
			return 0, nil, noEOF(err)
		}
		if line == "" {
			return status, h, nil
		}
		if size += len(line); size > maxHeaderSize || count >= maxHeaders {
			return 0, nil, malformed("more than %d headers, or %d bytes of headers", maxHeaders, maxHeaderSize)
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return 0, nil, malformed("header %.40q", line)
		}
		name, value = strings.ToLower(name), strings.Trim(value, " \t")
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return 0, nil, malformed("header %s has control characters", name)
		}
		if before, twice := h[name]; twice {
			value = before + ", " + value
		}
		h[name] = value
	}
}

// parseStatus reads "HTTP/1.1 200 OK".
func parseStatus(line string) (int, error) {
	rest, ok := strings.CutPrefix(line, "HTTP/1.1 ")
	if !ok {
		return 0, malformed("status line %.40q", line)
	}
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if err != nil || len(code) != 3 || status < 100 {
		return 0, malformed("status %.40q", rest)
	}
	return status, nil
}

// readLine reads a line of bounded length without its line end.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", malformed("a line of more than %d bytes", maxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return string(line), nil
}

// noEOF replaces io.EOF by io.ErrUnexpectedEOF, for streams that end too early.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// bodyOf returns the body after the head of an answer. reusable reports whether the connection can serve another request after it.
func bodyOf(r *bufio.Reader, method string, status int, h Header) (body io.Reader, reusable bool, err error) {
	keepAlive := !strings.EqualFold(h.Get("Connection"), "close")
	length, encoding := h.Get("Content-Length"), h.Get("Transfer-Encoding")
	switch {
	case method == "HEAD" || status == 204 || status == 304:
		return strings.NewReader(""), keepAlive, nil
	case encoding != "":
		if !strings.EqualFold(encoding, "chunked") || length != "" {
			return nil, false, malformed("Transfer-Encoding %.40q", encoding)
		}
		return &chunkedBody{r: r}, keepAlive, nil
	case length != "":
		n, err := strconv.ParseUint(length, 10, 63)
		if err != nil {
			return nil, false, malformed("Content-Length %.40q", length)
		}
		return &lengthBody{r: r, left: int64(n)}, keepAlive, nil
	}
	return r, false, nil
}

// lengthBody is a body with a Content-Length.
type lengthBody struct {
	r    io.Reader
	left int64
}

func (e *lengthBody) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	if e.left -= int64(n); e.left > 0 {
		err = noEOF(err)
	} else if err == nil {
		err = io.EOF
	}
	return n, err
}

// chunkedBody is a body with Transfer-Encoding: chunked.
type chunkedBody struct {
	r     *bufio.Reader
	left  int64 // of the current chunk
	begun bool  // the first chunk was read
	err   error // returned by all further calls
}

func (c *chunkedBody) Read(p []byte) (n int, err error) {
	if c.err != nil || len(p) == 0 {
		return 0, c.err
	}
	if c.left == 0 {
		if c.err = c.nextChunk(); c.err != nil {
			return 0, c.err
		}
	}
	n, err = c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil {
		c.err = noEOF(err)
	}
	return n, c.err
}

// nextChunk reads the line before the next chunk. It returns io.EOF at the end of the body.
func (c *chunkedBody) nextChunk() error {
	if c.begun {
		switch line, err := readLine(c.r); {
		case err != nil:
			return noEOF(err)
		case line != "":
			return malformed("a chunk is longer than its length")
		}
	}
	c.begun = true
	line, err := readLine(c.r)
	if err != nil {
		return noEOF(err)
	}
	text, _, _ := strings.Cut(line, ";")
	size, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil || size > math.MaxInt64 {
		return malformed("chunk length %.40q", text)
	}
	if size > 0 {
		c.left = int64(size)
		return nil
	}
	for total := 0; ; {
		line, err := readLine(c.r)
		if err != nil {
			return noEOF(err)
		}
		if line == "" {
			return io.EOF
		}
		if total += len(line); total > maxHeaderSize {
			return malformed("more than %d bytes of trailers", maxHeaderSize)
		}
	}
}

// isToken reports whether s is valid as a method or as the name of a header.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// isTarget reports whether s is valid as the target of a request.
func isTarget(s string) bool {
	return strings.HasPrefix(s, "/") && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f })
}
