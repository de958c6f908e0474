package sandbox

import "io"

// TypedInput is the input of a terminal. A terminal has no end of input that can be closed without hanging up, so the
// end of from is typed (Ctrl-D), and reads then block until over is closed. A person at a terminal types the end.
func TypedInput(from io.Reader, person bool, over <-chan struct{}) io.Reader {
	return &typed{from: from, person: person, over: over}
}

type typed struct {
	from    io.Reader
	person  bool
	over    <-chan struct{}
	partial bool // the last line has no newline yet
	ended   bool
}

const endOfTransmission = 4 // Ctrl-D

func (t *typed) Read(p []byte) (int, error) {
	if t.ended {
		<-t.over
		return 0, io.EOF
	}
	n, err := t.from.Read(p)
	if n > 0 {
		t.partial = p[n-1] != '\n'
		return n, nil
	}
	if err == nil || len(p) < 2 {
		return 0, nil
	}
	t.ended = true
	if t.person {
		return t.Read(p)
	}
	p[0], p[1] = endOfTransmission, endOfTransmission
	if t.partial {
		return 2, nil // the first only ends the line
	}
	return 1, nil
}
