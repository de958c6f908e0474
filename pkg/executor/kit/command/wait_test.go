package command

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
)

func framed(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

// A waiting kit reports that it is ready, and reads its order and not a byte more.
func TestWait(t *testing.T) {
	in := strings.NewReader(framed(`{"args": ["kit", "typescript", "--entry", "ä"], "env": {"A": "b"}, "dir": "/"}`) + "rest")
	var said bytes.Buffer
	o, err := wait([]string{"typescript"}, Streams{In: in, Err: &said})
	if err != nil || !slices.Equal(o.Args, []string{"kit", "typescript", "--entry", "ä"}) || o.Env["A"] != "b" || o.Dir != "/" {
		t.Errorf("%+v %v", o, err)
	}
	if rest, _ := io.ReadAll(in); string(rest) != "rest" || said.String() != kitpath.Waiting {
		t.Errorf("%q %q", rest, said.String())
	}
}

func FuzzOrder(f *testing.F) {
	f.Add([]byte(framed(`{"args": ["a"]}`)))
	f.Add([]byte(framed(`{}`)))
	f.Add([]byte(framed(`null`)))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := readOrder(bytes.NewReader(text))
		if err == nil && len(o.Args) == 0 {
			t.Errorf("%q is an order", text)
		}
	})
}
