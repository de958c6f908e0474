package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// What toolchains prepare can fail: a full disk, a machine too busy, a JDK that is broken. Programs then do without, and start later. That it is so
// is written beside where it would be, so that every process knows, and it is tried again, ever more rarely:
//
//	WarmDir/java-0a1b2c…/jdk-2-ahead.failed   a Lack

// Lack is something that would have programs start sooner, and could not be made.
type Lack struct {
	What     string    `json:"what"`
	Error    string    `json:"error"`
	At       time.Time `json:"at"` // of the last attempt
	Attempts int       `json:"attempts"`
}

const (
	lackSuffix = ".failed"
	// The second attempt follows the first after lackFirst, each later one after lackGrowth times as long as the one before, up to lackMost.
	lackFirst  = time.Minute
	lackGrowth = 4
	lackMost   = 6 * time.Hour
	// maxLack bounds a mark; an error has a line or two.
	maxLack = 64 << 10
)

// Next is when it is tried again, if anybody asks for it.
func (l *Lack) Next() time.Time {
	wait := lackFirst
	for n := 1; n < l.Attempts && wait < lackMost; n++ {
		wait *= lackGrowth
	}
	return l.At.Add(min(wait, lackMost))
}

// due reports that its time has come. A mark from the future is one from before the clock was set.
func (l *Lack) due(now time.Time) bool { return !now.Before(l.Next()) || l.At.After(now) }

func (l *Lack) String() string {
	return fmt.Sprintf("%s: %s (tried %d times, the last time %s)", l.What, l.Error, l.Attempts, l.At.Local().Format(time.DateTime))
}

// lacking is a lack with the way to end it.
type lacking struct {
	Lack
	again func(context.Context) error
}

// lacks remembers that something could not be made, and tells whoever wants to know, once for each attempt. again makes it.
func (e *Executor) lacks(made string, l *Lack, again func(context.Context) error) {
	e.lackingMu.Lock()
	old := e.lacking[made]
	if e.lacking == nil {
		e.lacking = map[string]*lacking{}
	}
	e.lacking[made] = &lacking{*l, again}
	e.lackingMu.Unlock()
	if e.opts.OnLack != nil && (old == nil || !old.At.Equal(l.At)) {
		e.opts.OnLack(*l)
	}
}

// failed counts an attempt that failed, and marks it on disk. Where nothing can be written, this process remembers.
func (e *Executor) failed(made, what string, cause error, again func(context.Context) error) {
	l := &Lack{What: what, Error: cause.Error(), At: time.Now().UTC(), Attempts: 1}
	if before := e.lackOf(made); before != nil {
		l.Attempts += before.Attempts
	}
	if text, err := json.Marshal(l); err == nil {
		_ = os.WriteFile(made+lackSuffix, text, 0o600)
	}
	e.lacks(made, l, again)
}

// made forgets a lack: it is there now.
func (e *Executor) made(made string) {
	_ = os.Remove(made + lackSuffix)
	e.found(made)
}

// found does the same for what another process has made.
func (e *Executor) found(made string) {
	e.lackingMu.Lock()
	defer e.lackingMu.Unlock()
	delete(e.lacking, made)
}

// lackOf is what is known of an attempt that failed, here or in another process; nil is nothing.
func (e *Executor) lackOf(made string) *Lack {
	e.lackingMu.Lock()
	own := e.lacking[made]
	e.lackingMu.Unlock()
	marked := readLack(made + lackSuffix)
	if own != nil && (marked == nil || own.At.After(marked.At)) {
		return &own.Lack
	}
	return marked
}

// readLack reads a mark. One that is unreadable is a failure all the same.
func readLack(name string) *Lack {
	f, err := openPlain(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() > maxLack {
		return nil
	}
	var l Lack
	if json.NewDecoder(f).Decode(&l) != nil {
		l = Lack{What: filepath.Base(name), Error: "unknown"}
	}
	if l.At.IsZero() {
		l.At = st.ModTime()
	}
	l.Attempts = max(l.Attempts, 1)
	return &l
}

// Lacks are what this executor's programs do without, by name.
func (e *Executor) Lacks() (list []Lack) {
	e.lackingMu.Lock()
	defer e.lackingMu.Unlock()
	for _, made := range slices.Sorted(maps.Keys(e.lacking)) {
		list = append(list, e.lacking[made].Lack)
	}
	return list
}

// Marked are what programs of this user do without, as processes before this one have found.
func (e *Executor) Marked() (list []Lack) {
	names, _ := filepath.Glob(filepath.Join(e.warmDir(), "*", "*"+lackSuffix))
	for _, name := range names {
		if l := readLack(name); l != nil {
			list = append(list, *l)
		}
	}
	return list
}

// Retry makes what could not be made before and whose time has come, and reports whether there is anything new. An executor whose sandboxes are made
// ahead leaves that to whoever calls it now and then: no program waits for it.
func (e *Executor) Retry(ctx context.Context) (made bool) {
	e.lackingMu.Lock()
	due := maps.Clone(e.lacking)
	e.lackingMu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(due)) {
		if l := e.lackOf(name); ctx.Err() == nil && (l == nil || l.due(time.Now())) { // another process may have tried meanwhile
			made = due[name].again(ctx) == nil || made
		}
	}
	return made
}

// errLacking: it was tried, and it is not yet time to do so again.
func errLacking(l *Lack) error { return errors.New(cmp.Or(l.Error, "unknown")) }
