package containerproto

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns two connected ends.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	ra, wb := io.Pipe()
	rb, wa := io.Pipe()
	a, b = NewConn(wa), NewConn(wb)
	nothing := func(Kind, uint32, []byte) error { return nil }
	var served sync.WaitGroup
	served.Go(func() { _ = a.Serve(ra, nothing) })
	served.Go(func() { _ = b.Serve(rb, nothing) })
	t.Cleanup(func() {
		_, _ = wa.Close(), wb.Close()
		served.Wait()
	})
	return a, b
}

// Bytes arrive as they were sent, far more of them than a window has.
func TestStream(t *testing.T) {
	a, b := pair(t)
	sent := make([]byte, 5*Window+12345)
	_, _ = rand.Read(sent)
	in, out := b.Inlet(7), a.Outlet(7)
	go func() {
		for p := sent; len(p) > 0; {
			n := min(len(p), 100_000)
			if _, err := out.Write(p[:n]); err != nil {
				t.Error(err)
			}
			p = p[n:]
		}
		if err := out.Close(); err != nil {
			t.Error(err)
		}
	}()
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes, equal %v, %v", len(got), len(sent), bytes.Equal(got, sent), err)
	}
}

// A reader that does not read delays its own stream, and no other.
func TestSlowReader(t *testing.T) {
	a, b := pair(t)
	slow, stuck := b.Inlet(1), a.Outlet(1)
	blocked := make(chan error, 1)
	go func() {
		_, err := stuck.Write(make([]byte, Window+1))
		blocked <- err
	}()
	in, out := b.Inlet(2), a.Outlet(2)
	go func() { _, _ = out.Write([]byte("past it")); _ = out.Close() }()
	if got, err := io.ReadAll(in); string(got) != "past it" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	select {
	case err := <-blocked:
		t.Errorf("more than a window was sent: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	// Given up, the writer hears of it.
	_ = slow.Close()
	if err := <-blocked; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after stop: %v", err)
	}
	stuck.c.mu.Lock()
	defer stuck.c.mu.Unlock()
	if !stuck.stopped {
		t.Error("not stopped")
	}
}

// The end of the connection ends every stream, and every call that waits in one.
func TestEnd(t *testing.T) {
	r, w := io.Pipe()
	c := NewConn(io.Discard)
	in, out := c.Inlet(1), c.Outlet(2)
	read, wrote := make(chan error, 1), make(chan error, 1)
	go func() { _, err := in.Read(make([]byte, 1)); read <- err }()
	go func() { _, err := out.Write(make([]byte, 2*Window)); wrote <- err }()
	served := make(chan error, 1)
	go func() { served <- c.Serve(r, nil) }()
	time.Sleep(10 * time.Millisecond)
	_ = w.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, c := range []chan error{read, wrote} {
		if err := <-c; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
}

func frame(kind Kind, number uint32, body []byte) []byte {
	b := append([]byte{byte(kind)}, binary.LittleEndian.AppendUint32(nil, number)...)
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
}

// A malformed frame, or more data than the credit, ends the connection.
func TestMalformed(t *testing.T) {
	flood := bytes.Repeat(frame(KindData, 1, make([]byte, MaxData)), Window/MaxData+1)
	for name, text := range map[string][]byte{
		"kind 0": frame(0, 1, nil), "unknown kind": frame(kindEnd, 1, nil), "long data": frame(KindData, 1, make([]byte, MaxData+1)),
		"odd credit": frame(KindCredit, 2, []byte{1}), "too much credit": frame(KindCredit, 2, []byte{1, 0, 0, 0}), "too much data": flood,
		"length": {byte(KindReady), 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, "cut short": frame(KindReady, 1, []byte("text"))[:11],
	} {
		c := NewConn(io.Discard)
		c.Inlet(1)
		c.Outlet(2)
		err := c.Serve(bytes.NewReader(text), func(Kind, uint32, []byte) error { return nil })
		if !errors.Is(err, ErrMalformed) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A late frame is not malformed.
	c := NewConn(io.Discard)
	if err := c.Serve(bytes.NewReader(slices.Concat(frame(KindData, 9, []byte("x")), frame(KindClose, 9, nil), frame(KindStop, 8, nil))),
		nil); err != nil {
		t.Error(err)
	}
}

func TestMessages(t *testing.T) {
	e := &Exec{Phase: "run", Policy: seccomp.Policy{Notify: true, DenySetID: true},
		Exec: initproto.Exec{Args: []string{"a\xff\x00b", ""}, Env: []string{"X=\xfe"}, Dir: "/workspace", UID: 1000, IntoCgroup: -1,
			Stdio: [3]int{-1, -1, -1}}}
	got, err := DecodeExec(e.Encode())
	if err != nil || got.Phase != "run" || got.Policy != e.Policy || !slices.Equal(got.Args, e.Args) || !slices.Equal(got.Env, e.Env) ||
		got.UID != 1000 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range [][]byte{nil, {0}, {0, 200}, {0, 1, 'x'}, {0, 0, 99}} {
		if _, err := DecodeExec(text); err == nil {
			t.Errorf("%v is taken", text)
		}
	}
	body := AppendEntry(AppendEntry(nil, fs.ModeDir, "one"), 0, "two")
	var names []string
	if err := EachEntry(body, func(mode fs.FileMode, name string) bool {
		names = append(names,
			mode.String()+name)
		return true
	}); err != nil || !slices.Equal(names, []string{"d---------one", "----------two"}) {
		t.Errorf("%q, %v", names, err)
	}
	if err := EachEntry(body[:len(body)-1], func(fs.FileMode, string) bool { return true }); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, _, err := ParseOpened(Opened(0o644, -1)); err == nil {
		t.Error("a negative size is taken")
	}
}

func FuzzServe(f *testing.F) {
	f.Add(frame(KindData, 1, []byte("x")))
	f.Add(frame(KindExec, 1, (&Exec{Phase: "run", Exec: initproto.Exec{Args: []string{"x"}}}).Encode()))
	f.Add(frame(KindEntries, 1, AppendEntry(nil, 0, "name")))
	f.Add(frame(KindCredit, 2, []byte{0xff, 0xff, 0xff, 0xff}))
	f.Fuzz(func(_ *testing.T, text []byte) {
		c := NewConn(io.Discard)
		c.Inlet(1)
		c.Outlet(2)
		_ = c.Serve(bytes.NewReader(text), func(kind Kind, _ uint32, body []byte) error {
			switch kind {
			case KindExec:
				_, err := DecodeExec(body)
				return err
			case KindEntries:
				return EachEntry(body, func(fs.FileMode, string) bool { return true })
			case KindOpened:
				_, _, err := ParseOpened(body)
				return err
			case KindReady:
				return Parse(body, new(Ready))
			case KindFinished:
				return Parse(body, new(Finished))
			}
			_, _, err := ParsePath(body)
			return err
		})
	})
}

// Pieces of output arrive in their order, whatever the size of the reader's buffer.
func TestOutput(t *testing.T) {
	piece := func(stream int, text string) []byte {
		b := make([]byte, OutputHeader, OutputHeader+len(text))
		PutOutputHeader(b, stream, len(text))
		return append(b, text...)
	}
	sent := slices.Concat(piece(0, "one"), piece(1, "two"), piece(1, ""), piece(0, "three"))
	for size, want := range map[int]string{2: "0on0e1tw1o0th0re0e", 100: "0one1two0three"} {
		r := OutputReader{From: bytes.NewReader(sent)}
		var got []byte
		for {
			b := make([]byte, size)
			stream, n, err := r.ReadOutput(b)
			if n > 0 {
				got = append(append(got, "01"[stream]), b[:n]...)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				break
			}
		}
		if string(got) != want {
			t.Errorf("%d bytes at a time: %s, want %s", size, got, want)
		}
	}
	r := OutputReader{From: bytes.NewReader(sent[:OutputHeader-1])}
	if _, _, err := r.ReadOutput(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
