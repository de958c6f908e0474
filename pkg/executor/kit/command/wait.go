package command

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/typescript"
)

// Main runs the kit with the process's own arguments and streams and returns the exit status.
func Main() int {
	s := Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	args := os.Args[1:]
	if os.Getenv(kitpath.Waits) != "" {
		m, err := wait(args, s)
		if err != nil {
			return internal(s, err)
		}
		if args, err = m.become(); err != nil {
			return internal(s, err)
		}
	}
	return Run(args, s)
}

// order is the message to a waiting kit.
type order struct {
	Args []string          `json:"args"`
	Env  map[string]string `json:"env"`
	Dir  string            `json:"dir"`
}

// maxOrder bounds an order: arguments and environment are at most 1 MiB, and every byte of them may be escaped.
const maxOrder = 8 << 20

// wait prepares the named tool, reports that it is ready, and reads one order and not a byte more.
//
//	length (4 bytes, big endian), {"args": […], "env": {…}, "dir": "…"}
func wait(args []string, s Streams) (*order, error) {
	if len(args) > 0 && args[0] == "typescript" {
		typescript.Warm()
	}
	if _, err := io.WriteString(s.Err, kitpath.Waiting); err != nil {
		return nil, err
	}
	return readOrder(s.In)
}

func readOrder(r io.Reader) (*order, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, fmt.Errorf("read order: %w", err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxOrder {
		return nil, fmt.Errorf("read order: %d bytes are too many", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("read order: %w", err)
	}
	o := &order{}
	if err := json.Unmarshal(text, o); err != nil {
		return nil, fmt.Errorf("read order: %w", err)
	}
	if len(o.Args) == 0 {
		return nil, fmt.Errorf("read order: no tool is named")
	}
	return o, nil
}

// become sets the environment and directory of the order, and returns its arguments.
func (o *order) become() ([]string, error) {
	os.Clearenv()
	for k, v := range o.Env {
		if err := os.Setenv(k, v); err != nil {
			return nil, err
		}
	}
	if o.Dir != "" {
		if err := os.Chdir(o.Dir); err != nil { //nolint:forbidigo // the process serves this order alone
			return nil, err
		}
	}
	os.Args = o.Args
	return o.Args[1:], nil
}
