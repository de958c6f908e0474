package command

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
)

// obey waits for an order and applies it.
func obey(s Streams) ([]string, error) {
	o, err := wait(nil, s)
	if err != nil {
		return nil, err
	}
	return o.become()
}

// A tool becomes what its message says, and leaves the rest of its input alone.
func TestOrder(t *testing.T) {
	dir := t.TempDir()
	t.Chdir("/")
	t.Setenv("OLD", "1")
	in := strings.NewReader(framed(`{"args":["kit","tool","a b"],"env":{"NEW":"2"},"dir":"`+dir+`"}`) + "the rest")
	var said bytes.Buffer
	kept := os.Environ()
	args, err := obey(Streams{In: in, Err: &said})
	now, _ := os.Getwd()
	env := os.Environ()
	for _, kv := range kept { // before anything fails
		k, v, _ := strings.Cut(kv, "=")
		_ = os.Setenv(k, v)
	}
	if err != nil || !slices.Equal(args, []string{"tool", "a b"}) {
		t.Fatalf("%q, %v", args, err)
	}
	if said.String() != kitpath.Waiting || in.Len() != len("the rest") || now != dir || !slices.Equal(env, []string{"NEW=2"}) {
		t.Errorf("said %q, left %d, in %s, with %q", said.String(), in.Len(), now, env)
	}
}

func TestOrderInVain(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":         "",
		"half a length":   "\x00\x00",
		"half a message":  framed("{}")[:5],
		"too long":        "\xff\xff\xff\xff",
		"not JSON":        framed("{"),
		"no such place":   framed(`{"args":["kit"],"dir":"/no/such/place"}`),
		"an odd variable": framed(`{"args":["kit"],"env":{"":"x"}}`),
	} {
		kept := os.Environ()
		_, err := obey(Streams{In: strings.NewReader(in), Err: &bytes.Buffer{}})
		for _, kv := range kept {
			k, v, _ := strings.Cut(kv, "=")
			_ = os.Setenv(k, v)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
