package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openOutputs returns the reader and the writing ends of both pipes.
func openOutputs(t *testing.T) (*outputs, [2]*os.File) {
	t.Helper()
	p := &Program{}
	theirs, err := p.openPipes(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	_ = unix.Close(theirs[0])
	writers := [2]*os.File{os.NewFile(uintptr(theirs[1]), "stdout"), os.NewFile(uintptr(theirs[2]), "stderr")}
	t.Cleanup(func() { closeFiles(writers[:]) })
	return p.out, writers
}

// next reads once and returns the stream and its data.
func next(t *testing.T, o *outputs, size int) string {
	t.Helper()
	b := make([]byte, size)
	stream, n, err := o.read(b)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(stream, " ", string(b[:n]))
}

// The stream with the oldest unread data is read first, however late the reader comes.
func TestOutputOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		write string // streams, one write each; the reader comes in at r
		want  string // reads
	}{
		{"stderr last", "01", "0 a|1 b"},
		{"stderr first", "10", "1 a|0 b"},
		{"the reader keeps up", "0r1r0r1r1r0r", "0 a|1 b|0 c|1 d|1 e|0 f"},
		{"two writes between two reads", "01r10r01r", "0 a|1 b|1 c|0 d|0 e|1 f"},
		// This is the limit of two pipes: a stream is read up to its newest data.
		{"a stream twice before it is read", "010", "0 ac|1 b"},
		{"a stream was read before the other wrote", "0r10r", "0 a|1 b|0 c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, writers := openOutputs(t)
			var got []string
			unread := map[byte]bool{}
			read := func() {
				for range unread {
					got = append(got, next(t, o, 100))
				}
				clear(unread)
			}
			letter := byte('a')
			for _, w := range []byte(c.write) {
				if w == 'r' {
					read()
					continue
				}
				if _, err := writers[w-'0'].Write([]byte{letter}); err != nil {
					t.Fatal(err)
				}
				unread[w] = true
				letter++
			}
			read()
			if s := strings.Join(got, "|"); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
		})
	}
}

// A stream that is not read to its end at once keeps the rest, and does not hold up the other.
func TestOutputRest(t *testing.T) {
	o, writers := openOutputs(t)
	_, _ = writers[0].WriteString("aabb")
	_, _ = writers[1].WriteString("cc")
	for _, want := range []string{"0 aa", "1 cc", "0 bb"} {
		if got := next(t, o, 2); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	// A program can make the pipe return one write at a time.
	if _, err := unix.FcntlInt(writers[1].Fd(), unix.F_SETFL, unix.O_WRONLY|unix.O_DIRECT); err != nil {
		t.Fatal(err)
	}
	_, _ = writers[1].WriteString("d")
	_, _ = writers[1].WriteString("e")
	for _, want := range []string{"1 d", "1 e"} {
		if got := next(t, o, 2); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The reader waits for data, ends with the second stream, and is ended by close.
func TestOutputEnd(t *testing.T) {
	o, writers := openOutputs(t)
	got := make(chan string)
	go func() {
		for {
			b := make([]byte, 10)
			stream, n, err := o.read(b)
			got <- fmt.Sprint(stream, " ", string(b[:n]), " ", err)
			if err != nil {
				return
			}
		}
	}()
	_ = writers[0].Close()
	_, _ = writers[1].WriteString("x")
	if s := <-got; s != "1 x <nil>" {
		t.Error(s)
	}
	_ = writers[1].Close()
	if s := <-got; !strings.HasSuffix(s, io.EOF.Error()) {
		t.Error(s)
	}

	o, writers = openOutputs(t)
	ended := make(chan error)
	go func() {
		_, _, err := o.read(make([]byte, 10))
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond) // the read may wait by then; it ends in any case
	o.close()
	o.close()
	if err := <-ended; err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if _, err := writers[0].WriteString("x"); err == nil {
		t.Error("a closed pipe takes data")
	}
}
