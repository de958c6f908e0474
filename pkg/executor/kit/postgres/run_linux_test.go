package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// TestServerLog: the SQLSTATE is found however the log arrives, and only where the server put it.
func TestServerLog(t *testing.T) {
	text := "00000 LOG:  starting\n" +
		"23505 ERROR:  duplicate key\n" +
		"not an error 42601 ERROR:  said by a function\n" +
		strings.Repeat("x", 100_000) + "\n" +
		"42601 ERROR:  syntax error at or near \"FORM\" at character 10\n" +
		"57014 FATAL:  not an ERROR:\n"
	whole, bytewise := &serverLog{}, &serverLog{}
	if _, err := whole.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	r := iotest.OneByteReader(strings.NewReader(text))
	one := make([]byte, 1)
	for {
		if n, err := r.Read(one); err != nil || n == 0 {
			break
		}
		_, _ = bytewise.Write(one)
	}
	for _, l := range []*serverLog{whole, bytewise} {
		if l.state != syntaxState {
			t.Errorf("state %q, want %q", l.state, syntaxState)
		}
		if len(l.tail) > 4096 || !strings.HasSuffix(string(l.tail), "not an ERROR:\n") {
			t.Errorf("kept %d bytes", len(l.tail))
		}
	}
}

func TestReady(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		"":                                      false,
		"1\n/d\n0\n5432\n/s\n\n5 6\nstarting\n": false,
		"1\n/d\n0\n5432\n/s\n\n5 6\nready   \n": true,
	} {
		if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ready(dir); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestNoServer: a server that ends at once is no reason to wait.
func TestNoServer(t *testing.T) {
	bin, cluster := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "postgres"), []byte("#!/bin/sh\necho 'XX000 FATAL:  no' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := start(bin, cluster, cluster); err == nil || !strings.Contains(err.Error(), "FATAL:  no") {
		t.Errorf("%v", err)
	}
	if _, err := start(filepath.Join(bin, "none"), cluster, cluster); err == nil {
		t.Error("no program, no error")
	}
}
