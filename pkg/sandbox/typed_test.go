package sandbox

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
)

func TestTypedInput(t *testing.T) {
	over := make(chan struct{})
	close(over)
	for _, c := range []struct {
		in     string
		person bool
		want   string
	}{
		{"", false, "\x04"},
		{"a\n", false, "a\n\x04"},
		{"a", false, "a\x04\x04"},
		{"a", true, "a"},
	} {
		for name, from := range map[string]io.Reader{"at once": strings.NewReader(c.in),
			"by bytes": iotest.OneByteReader(strings.NewReader(c.in)), "end with data": iotest.DataErrReader(strings.NewReader(c.in))} {
			if got, err := io.ReadAll(TypedInput(from, c.person, over)); err != nil || string(got) != c.want {
				t.Errorf("%q %s: %q, %v", c.in, name, got, err)
			}
		}
	}
}

// The input ends only with the program.
func TestTypedInputLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		r := TypedInput(strings.NewReader(""), true, over)
		var ended atomic.Bool
		go func() {
			_, _ = r.Read(make([]byte, 8))
			ended.Store(true)
		}()
		synctest.Wait()
		if ended.Load() {
			t.Error("the terminal has hung up")
		}
		close(over)
		synctest.Wait()
		if !ended.Load() {
			t.Error("it goes on after the program")
		}
	})
}
