package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Of creations of one name at a time, one succeeds; another owner may have the name, and a failed creation does not keep it.
func TestNameOfOneSession(t *testing.T) {
	m := newManager(t, Options{})
	bad := in("nonesuch")
	bad.Owner, bad.Name = "a", "lab"
	if _, err := m.Create(t.Context(), bad); err == nil {
		t.Fatal("a session of no language")
	}
	const creators = 4
	var all sync.WaitGroup
	errs := make([]error, creators)
	for i := range creators {
		all.Go(func() {
			req := in("python")
			req.Owner, req.Name = "a", "lab"
			_, errs[i] = m.Create(context.WithoutCancel(t.Context()), req)
		})
	}
	all.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		} else if !errors.Is(err, sandbox.ErrInvalid) {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d sessions have one name", made)
	}
	other := in("python")
	other.Owner, other.Name = "b", "lab"
	if found, err := m.Get("b", create(t, m, other).ID()); err != nil || found.owner != "b" {
		t.Error(found, err)
	}
}

// A session whose idle time passes during a cell ends when it is idle afterwards.
func TestIdleAfterLongCell(t *testing.T) {
	closed := make(chan string, 1)
	m := newManager(t, Options{Idle: time.Second, OnClose: func(_, _, why string) { closed <- why }})
	s := create(t, m, in("python"))
	s.shows("import time; time.sleep(2); 1", "1")
	select {
	case why := <-closed:
		if why != "it was idle for 1s" {
			t.Error(why)
		}
	case <-time.After(patience):
		t.Error("the session lives on")
	}
}

// Cells without code fill no memory.
func TestHistoryOfEmptyCells(t *testing.T) {
	s := &Session{}
	for range 3 * maxHistory / pastSize {
		s.remember(Past{})
	}
	if n := len(s.History()); n == 0 || n > maxHistory/pastSize {
		t.Errorf("%d cells are kept", n)
	}
}
