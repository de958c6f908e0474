package prepared

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
	"sync"
	"time"
)

// Failure is a failed preparation: because of a full disk, a busy machine, a broken JDK. Programs then start without the prepared
// files, and slower. The failure is recorded beside the missing files, so that every process knows of it, and the preparation is
// repeated at growing intervals.
type Failure struct {
	What     string    `json:"what"`
	Error    string    `json:"error"`
	At       time.Time `json:"at"` // of the last attempt
	Attempts int       `json:"attempts"`
}

const (
	failureSuffix = ".failed"
	// The second attempt follows the first after firstPause, each later one after pauseGrowth times the pause before, up to
	// longestPause.
	firstPause   = time.Minute
	pauseGrowth  = 4
	longestPause = 6 * time.Hour
	// maxFailure bounds a mark; an error has a line or two.
	maxFailure = 64 << 10
)

// Next returns the time from which the preparation may be repeated.
func (f *Failure) Next() time.Time {
	wait := firstPause
	for n := 1; n < f.Attempts && wait < longestPause; n++ {
		wait *= pauseGrowth
	}
	return f.At.Add(min(wait, longestPause))
}

// Due reports whether the preparation may be repeated now. A mark from the future dates from before a change of the clock.
func (f *Failure) Due(now time.Time) bool { return !now.Before(f.Next()) || f.At.After(now) }

func (f *Failure) String() string {
	return fmt.Sprintf("%s: %s (tried %d times, the last time %s)", f.What, f.Error, f.Attempts, f.At.Local().Format(time.DateTime))
}

// Err returns the failure as an error, for callers before the next attempt.
func (f *Failure) Err() error { return errors.New(cmp.Or(f.Error, "unknown")) }

// Store is the directory of all prepared files, and the failed preparations.
type Store struct {
	Root      string        // "": a directory of the user's cache
	OnFailure func(Failure) // called once for each failed attempt; may be nil

	failuresMu sync.Mutex
	failures   map[string]*pending // by the path of what is missing

	filesMu sync.Mutex
	files   map[string]string // on the host, by name
}

// pending is a failure with the function that repeats the preparation.
type pending struct {
	Failure
	retry func(context.Context) error
}

// Remember records a known failure, and reports each attempt to OnFailure once. retry repeats the preparation.
func (s *Store) Remember(made string, f *Failure, retry func(context.Context) error) {
	s.failuresMu.Lock()
	old := s.failures[made]
	if s.failures == nil {
		s.failures = map[string]*pending{}
	}
	s.failures[made] = &pending{*f, retry}
	s.failuresMu.Unlock()
	if s.OnFailure != nil && (old == nil || !old.At.Equal(f.At)) {
		s.OnFailure(*f)
	}
}

// Fail counts a failed attempt and marks it on disk. If the disk is not writable, only this process knows of it.
func (s *Store) Fail(made, what string, cause error, retry func(context.Context) error) {
	f := &Failure{What: what, Error: cause.Error(), At: time.Now().UTC(), Attempts: 1}
	if before := s.FailureOf(made); before != nil {
		f.Attempts += before.Attempts
	}
	if text, err := json.Marshal(f); err == nil {
		_ = os.WriteFile(made+failureSuffix, text, 0o600)
	}
	s.Remember(made, f, retry)
}

// Succeed removes the mark of a failure: this process has made what was missing.
func (s *Store) Succeed(made string) {
	_ = os.Remove(made + failureSuffix)
	s.Forget(made)
}

// Forget drops a failure from this process's memory: another process has made what was missing.
func (s *Store) Forget(made string) {
	s.failuresMu.Lock()
	defer s.failuresMu.Unlock()
	delete(s.failures, made)
}

// FailureOf returns the last failed attempt, in this process or another; nil without one.
func (s *Store) FailureOf(made string) *Failure {
	s.failuresMu.Lock()
	own := s.failures[made]
	s.failuresMu.Unlock()
	marked := readFailure(made + failureSuffix)
	if own != nil && (marked == nil || own.At.After(marked.At)) {
		return &own.Failure
	}
	return marked
}

// readFailure reads a mark. A mark that can not be parsed counts as a failure.
func readFailure(name string) *Failure {
	file, err := OpenRegular(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil || st.Size() > maxFailure {
		return nil
	}
	var f Failure
	if json.NewDecoder(file).Decode(&f) != nil {
		f = Failure{What: filepath.Base(name), Error: "unknown"}
	}
	if f.At.IsZero() {
		f.At = st.ModTime()
	}
	f.Attempts = max(f.Attempts, 1)
	return &f
}

// Failures returns the failures that this process knows, by name.
func (s *Store) Failures() (list []Failure) {
	s.failuresMu.Lock()
	defer s.failuresMu.Unlock()
	for _, made := range slices.Sorted(maps.Keys(s.failures)) {
		list = append(list, s.failures[made].Failure)
	}
	return list
}

// Marked returns the failures that processes of this user have marked on disk.
func (s *Store) Marked() (list []Failure) {
	names, _ := filepath.Glob(filepath.Join(s.Dir(), "*", "*"+failureSuffix))
	for _, name := range names {
		if f := readFailure(name); f != nil {
			list = append(list, *f)
		}
	}
	return list
}

// Retry repeats the failed preparations that are due, and reports whether one succeeded.
func (s *Store) Retry(ctx context.Context) (made bool) {
	s.failuresMu.Lock()
	due := maps.Clone(s.failures)
	s.failuresMu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(due)) {
		if f := s.FailureOf(name); ctx.Err() == nil && (f == nil || f.Due(time.Now())) { // another process may have tried meanwhile
			made = due[name].retry(ctx) == nil || made
		}
	}
	return made
}
