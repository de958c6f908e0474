package stack

import "errors"

// maxHello bounds a ClientHello with the headers of its records; those with post-quantum keys have about 2 KiB.
const maxHello = 64 << 10

// Errors of a first flight that names no server, or is no TLS.
var (
	errNotTLS       = errors.New("it does not begin with a TLS ClientHello")
	errNoServerName = errors.New("its ClientHello has no server name")
)

// serverName returns the server name of the TLS ClientHello at the start of data. more reports that data is too short to tell.
// The ClientHello may be spread over several records.
func serverName(data []byte) (name string, more bool, err error) {
	var hello []byte // the handshake message, without the headers of its records
	for {
		if len(hello) >= 4 && len(hello) >= 4+uint24(hello[1:]) {
			name, err = helloServerName(hello[4 : 4+uint24(hello[1:])])
			return name, false, err
		}
		if len(data) < 5 {
			if len(data) > 0 && data[0] != recordHandshake {
				return "", false, errNotTLS
			}
			return "", true, nil
		}
		size := int(data[3])<<8 | int(data[4])
		if data[0] != recordHandshake || data[1] != 3 || size == 0 || size > maxRecord {
			return "", false, errNotTLS
		}
		if part := data[5:min(len(data), 5+size)]; len(hello) == 0 && len(part) > 0 && part[0] != handshakeClientHello {
			return "", false, errNotTLS
		}
		if len(data) < 5+size {
			return "", true, nil
		}
		hello, data = append(hello, data[5:5+size]...), data[5+size:]
		if len(hello) >= 4 && uint24(hello[1:]) > maxHello {
			return "", false, errNotTLS
		}
	}
}

const (
	recordHandshake      = 22
	handshakeClientHello = 1
	maxRecord            = 1 << 14
	extensionServerName  = 0
)

func uint24(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

// reader takes length-prefixed fields off a message. After the first that does not fit it yields nothing.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.data) {
		r.bad, r.data = true, nil
		return nil
	}
	head := r.data[:n]
	r.data = r.data[n:]
	return head
}

// vector takes a field whose length is in its first size bytes.
func (r *reader) vector(size int) []byte {
	n := 0
	for _, b := range r.take(size) {
		n = n<<8 | int(b)
	}
	return r.take(n)
}

// helloServerName reads the body of a ClientHello (RFC 8446, 4.1.2; RFC 6066, 3).
func helloServerName(body []byte) (string, error) {
	r := reader{data: body}
	r.take(2 + 32) // version, random
	r.vector(1)    // session
	r.vector(2)    // cipher suites
	r.vector(1)    // compression
	extensions := reader{data: r.vector(2), bad: r.bad}
	name, found := "", false
	for len(extensions.data) > 0 {
		kind := extensions.take(2)
		data := extensions.vector(2)
		if extensions.bad || kind[0] != 0 || kind[1] != extensionServerName {
			continue
		}
		names := reader{data: data}
		list := reader{data: names.vector(2)}
		for len(list.data) > 0 {
			isHost := string(list.take(1)) == "\x00"
			host := list.vector(2)
			if found && isHost {
				return "", errNotTLS // two names: servers differ in which one they take
			}
			if isHost {
				name, found = string(host), true
			}
		}
		if names.bad || list.bad || len(names.data) > 0 {
			return "", errNotTLS
		}
	}
	switch {
	case extensions.bad || len(r.data) > 0:
		return "", errNotTLS
	case name == "":
		return "", errNoServerName
	}
	return name, nil
}
