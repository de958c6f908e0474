package key

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "own", "keys.json"))
	must(t, err)
	return s
}

func newRing(t *testing.T, s *Store) *Ring {
	t.Helper()
	r := NewRing(s)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func create(t *testing.T, s *Store, n New) (Key, string) {
	t.Helper()
	k, token, err := s.Create(t.Context(), n)
	must(t, err)
	return k, token
}

func TestAKeyOpensWhatItWasMadeFor(t *testing.T) {
	s := newStore(t)
	r := newRing(t, s)
	if n, err := r.Len(); n != 0 || err != nil {
		t.Errorf("%d keys before there is a file: %v", n, err)
	}
	limits, err := ParseLimits("memory=1g,rate=30/m,concurrency=2")
	must(t, err)
	expires := time.Now().Add(time.Hour)
	made, token := create(t, s, New{Name: "ci", Scopes: []string{ScopeRead, ScopeRun, ScopeRun}, Expires: expires, Limits: limits})
	got, err := r.Check(token)
	must(t, err)
	if got.ID != made.ID || got.Name != "ci" || !slices.Equal(got.Scopes, []string{"read", "run"}) || got.Limits != limits ||
		got.Expires.Unix() != expires.Unix() {
		t.Errorf("%+v", got)
	}
	if got.Limits.Max.Memory != sandbox.GiB || got.Limits.Rate != 0.5 || got.Limits.Concurrency != 2 {
		t.Errorf("%+v", got.Limits)
	}
	if len(token) != TokenLen || !strings.HasPrefix(token, Prefix+made.ID+"_") {
		t.Errorf("%q", token)
	}
}

// A2: everything that is not a key has one and the same answer.
func TestWhatIsNoKeyIsRefused(t *testing.T) {
	s := newStore(t)
	r := newRing(t, s)
	k, token := create(t, s, New{Name: "a"})
	other, _ := create(t, s, New{Name: "b"})
	if _, err := r.Check(token); err != nil {
		t.Fatalf("the positive control: %v", err)
	}
	body := token[:TokenLen-sumLen]
	swapped := Prefix + other.ID + body[len(Prefix)+idLen:]
	wrong, _ := newToken(k.ID)      // right in form, another secret
	unknown, _ := newToken(newID()) // of no key
	for name, bad := range map[string]string{
		"missing": "", "prefix": Prefix, "id alone": Prefix + k.ID, "the hash": hashOf(token), "upper case": strings.ToUpper(token),
		"cut": token[:TokenLen-1], "longer": token + "a", "space": token + " ", "checksum": body + strings.Repeat("a", sumLen),
		"another's id": swapped + checksum(swapped), "wrong secret": wrong, "unknown": unknown, "NUL": token[:20] + "\x00" + token[21:],
		"oversized": Prefix + strings.Repeat("a", 1<<20),
	} {
		got, err := r.Check(bad)
		if err != ErrRefused || got.ID != "" { //nolint:errorlint // the very same value, so that nothing can be told apart
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestAtOnce(t *testing.T) {
	s := newStore(t)
	r := newRing(t, s)
	_, token := create(t, s, New{Name: "a"})
	_, brief := create(t, s, New{Name: "brief", Expires: time.Now().Add(time.Hour)})
	check := func(token string, good bool) {
		t.Helper()
		if _, err := r.Check(token); (err == nil) != good {
			t.Errorf("good: %v, got %v", good, err)
		}
	}
	check(token, true)
	_, again, err := s.Rotate(t.Context(), "a", 0)
	must(t, err)
	check(token, false)
	check(again, true)
	_, third, err := s.Rotate(t.Context(), "a", time.Minute)
	must(t, err)
	check(again, true)
	check(third, true)
	check(brief, true)
	if n, err := r.Len(); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	r.now = func() time.Time { return time.Now().Add(time.Hour) }
	check(again, false)
	check(third, true)
	check(brief, false)
	if n, err := r.Len(); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	_, err = s.Remove(t.Context(), "a")
	must(t, err)
	check(third, false)
}

// A ring whose file can not be read refuses every token.
func TestFailsClosed(t *testing.T) {
	s := newStore(t)
	r := newRing(t, s)
	_, token := create(t, s, New{Name: "a"})
	good, err := os.ReadFile(s.Path())
	must(t, err)
	check := func(what, says string) {
		t.Helper()
		if _, err := r.Check(token); err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", what, err, says)
		}
		if _, err := s.List(t.Context()); err == nil {
			t.Errorf("%s: listed", what)
		}
	}
	for what, text := range map[string]string{
		"half": string(good[:len(good)/2]), "empty": "", "newer": strings.Replace(string(good), `"version": 1`, `"version": 2`, 1),
		"unknown field":        strings.Replace(string(good), `"version"`, `"Verzion":1,"version"`, 1),
		"no hash":              `{"version":1,"keys":[{"id":"aaaaaaaaaa","name":"x"}]}`,
		"a limit that is none": strings.Replace(string(good), `"limits": {}`, `"limits": {"memmory":"1g"}`, 1),
	} {
		if text == string(good) {
			t.Fatalf("%s changes nothing", what)
		}
		must(t, os.WriteFile(s.Path(), []byte(text), 0o600))
		check(what, "keys")
	}
	must(t, os.WriteFile(s.Path(), good, 0o600))
	if _, err := r.Check(token); err != nil {
		t.Errorf("as it was: %v", err)
	}
	must(t, os.Chmod(s.Path(), 0o644))
	check("open to others", "chmod 0600")
	must(t, os.Chmod(s.Path(), 0o600))
	// What is wrong may be around the file, which stays as it is: it is tried again after a moment, and not before.
	now := time.Now()
	r.now = func() time.Time { return now }
	must(t, os.Chmod(filepath.Dir(s.Path()), 0o777))
	must(t, os.Chtimes(s.Path(), now, now))
	if _, err := r.Check(token); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("others can replace it: %v", err)
	}
	must(t, os.Chmod(filepath.Dir(s.Path()), 0o700))
	again := func(good bool) {
		t.Helper()
		if _, err := r.Check(token); (err == nil) != good {
			t.Errorf("after its directory was put in order: %v", err)
		}
	}
	again(false)
	now = now.Add(retryAfter)
	again(true)
	if os.Geteuid() == 0 { // who can read everybody's must not believe everybody's
		must(t, os.Chown(s.Path(), 12345, 12345))
		must(t, os.Chtimes(s.Path(), now.Add(time.Second), now.Add(time.Second)))
		if _, err := r.Check(token); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("file of another user: %v", err)
		}
		must(t, os.Chown(s.Path(), 0, 0))
		now = now.Add(retryAfter)
	}
	must(t, os.Rename(s.Path(), s.Path()+".away"))
	if _, err := r.Check(token); !errors.Is(err, ErrRefused) {
		t.Errorf("the file is gone: %v", err)
	}
	must(t, os.Symlink(s.Path()+".away", s.Path()))
	check("a link", "")
	must(t, os.Remove(s.Path()))
}

func TestNothingSecretIsKept(t *testing.T) {
	s := newStore(t)
	_, token := create(t, s, New{Name: "a"})
	_, second, err := s.Rotate(t.Context(), "a", time.Minute)
	must(t, err)
	dir := filepath.Dir(s.Path())
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		for _, tok := range []string{token, second} {
			if secret := tok[len(Prefix)+idLen+1 : TokenLen-sumLen]; bytes.Contains(text, []byte(secret)) {
				t.Errorf("the secret is in %s", e.Name())
			}
		}
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	keys, err := s.List(t.Context())
	must(t, err)
	if text, err := json.Marshal(keys); err != nil || strings.Contains(string(text), "hash") {
		t.Errorf("%s, %v", text, err)
	}
}

// Processes that make keys at the same time lose none, and each of them is good.
func TestManyProcesses(t *testing.T) {
	s := newStore(t)
	r := newRing(t, s)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var tokens []string
	for p := range 4 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "KEY_TEST_STORE="+s.Path(), fmt.Sprintf("KEY_TEST_STEM=p%d", p))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v: %s", err, &stderr)
			}
			mu.Lock()
			defer mu.Unlock()
			tokens = append(tokens, strings.Fields(string(out))...)
		})
	}
	for range 50 { // a reader sees whole files only
		if _, err := s.List(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if n, err := r.Len(); n != 80 || len(tokens) != 80 || err != nil {
		t.Errorf("%d keys, %d tokens, %v", n, len(tokens), err)
	}
	for _, token := range tokens {
		if _, err := r.Check(token); err != nil {
			t.Error(err)
		}
	}
}

// One who dies while writing leaves the keys as they were, and is no obstacle.
func TestAfterACrash(t *testing.T) {
	s := newStore(t)
	_, token := create(t, s, New{Name: "a"})
	must(t, os.WriteFile(s.Path()+".new", []byte(`{"version":1,"ke`), 0o600))
	r := newRing(t, s)
	if _, err := r.Check(token); err != nil {
		t.Error(err)
	}
	create(t, s, New{Name: "b"})
	if n, err := r.Len(); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := os.Lstat(s.Path() + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

func TestLastUse(t *testing.T) {
	s := newStore(t)
	used, token := create(t, s, New{Name: "used"})
	unused, _ := create(t, s, New{Name: "unused"})
	gone, goneToken := create(t, s, New{Name: "gone"})
	r := NewRing(s)
	for _, tok := range []string{token, goneToken, token} {
		_, err := r.Check(tok)
		must(t, err)
	}
	_, err := s.Remove(t.Context(), gone.ID)
	must(t, err)
	must(t, r.Close())
	must(t, r.Close()) // twice is fine
	k, err := s.Show(t.Context(), used.ID)
	must(t, err)
	if since := time.Since(k.Used); since < 0 || since > time.Minute {
		t.Errorf("used %v ago", since)
	}
	if k, err := s.Show(t.Context(), unused.Name); err != nil || !k.Used.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
	if all := s.readUsed(); len(all) != 1 {
		t.Errorf("%v", all)
	}
	// A second server that saw it earlier does not set it back.
	must(t, s.writeUsed(t.Context(), map[string]time.Time{used.ID: k.Used.Add(-time.Hour)}))
	if later, err := s.Show(t.Context(), used.ID); err != nil || !later.Used.Equal(k.Used) {
		t.Errorf("%v, %v", later.Used, err)
	}
	must(t, os.WriteFile(s.Path()+".used", []byte("{half"), 0o600))
	if _, err := s.List(t.Context()); err != nil {
		t.Errorf("a convenience is missed: %v", err)
	}
}

func TestWrongRequests(t *testing.T) {
	s := newStore(t)
	create(t, s, New{Name: "build-server"})
	for _, test := range []struct {
		n    New
		says string
	}{
		{New{}, "--name NAME"},
		{New{Name: "-x"}, `"-x"`},
		{New{Name: "a b"}, "letters"},
		{New{Name: "a\x1b[2J"}, `"a\x1b[2J"`},
		{New{Name: "\xff"}, "letters"},
		{New{Name: strings.Repeat("a", 65)}, "64"},
		{New{Name: "a", Scopes: []string{"runs"}}, "run?"},
		{New{Name: "a", Scopes: []string{"nonsense"}}, "one of run, read"},
		{New{Name: "a", Expires: time.Now().Add(-time.Hour)}, "is over"},
		{New{Name: "build-server"}, "key rotate build-server"},
	} {
		_, token, err := s.Create(t.Context(), test.n)
		if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), test.says) || token != "" {
			t.Errorf("%+v: %v, want %q", test.n, err, test.says)
		}
	}
	for name, call := range map[string]func(name string) error{
		"show":   func(name string) error { _, err := s.Show(t.Context(), name); return err },
		"rm":     func(name string) error { _, err := s.Remove(t.Context(), name); return err },
		"rotate": func(name string) error { _, _, err := s.Rotate(t.Context(), name, 0); return err },
	} {
		if err := call("build-serv"); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "try: build-server, or") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := s.Rotate(t.Context(), "build-server", -1); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Create(ctx, New{Name: "late"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	const all = "timeout=1m30s,cpus=1.5,cpu_time=10s,memory=1GiB,disk=1500000000,inodes=100,pids=10,open_files=64,output_limit=1MiB," +
		"net_rate=1MiB,net_bytes=2GiB,net_connections=5," +
		"compile_timeout=2m0s,compile_memory=2GiB,network=localhost,rate=0.25,burst=3,concurrency=2"
	l, err := ParseLimits(all)
	must(t, err)
	if l.String() != all {
		t.Errorf("\n got %s\nwant %s", l, all)
	}
	data, err := json.Marshal(l)
	must(t, err)
	var back Limits
	must(t, json.Unmarshal(data, &back))
	if back != l {
		t.Errorf("%s became %+v", data, back)
	}
	if n := len(strings.Split(all, ",")); n != len(LimitNames()) {
		t.Errorf("the text has %d of %d limits", n, len(LimitNames()))
	}
	same, err := ParseLimits("cpu-time=10, memory = 1g,rate=900/h")
	must(t, err)
	if same.Max.CPUTime != 10*time.Second || same.Max.Memory != sandbox.GiB || same.Rate != 0.25 {
		t.Errorf("%+v", same)
	}
	for text, says := range map[string]string{
		"": "is no limit", "memory": "is no limit", "memory=": "size", "memory=0": "more than zero", "memory=-1": "more than zero",
		"memmory=1g": "memory?",
		"nonsense=1": "one of timeout", "rate=5/y": "5/s", "rate=NaN": "not a number", "rate=0": "more than zero", "rate=1e9": "not a number",
		"cpus=1/s":    "number of cores",
		"timeout=NaN": "duration", "timeout=Inf": "duration", "timeout=-1s": "more than zero", "timeout=9e99": "duration", "burst=1.5": "whole",
		"pids=0": "more than zero",
	} {
		if l, err := ParseLimits(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v, want %q", text, l, err, says)
		}
	}
}

func FuzzToken(f *testing.F) {
	token, _ := newToken(newID())
	for _, seed := range []string{token, token[:20], "", Prefix, strings.Repeat("a", TokenLen)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, ok := idOf(text)
		if ok && (len(text) != TokenLen || !strings.HasPrefix(text, Prefix+id+"_") || !isID(id) ||
			checksum(text[:TokenLen-sumLen]) != text[TokenLen-sumLen:]) {
			t.Errorf("%q is taken for a token of %q", text, id)
		}
		if !ok && id != "" {
			t.Errorf("%q: %q", text, id)
		}
	})
}

func FuzzLimits(f *testing.F) {
	f.Add("memory=1g,rate=5/s")
	f.Add("timeout=1.5,cpus=.5,disk=1.37t")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimits(text)
		if err != nil {
			return
		}
		again, err := ParseLimits(l.String())
		if err != nil || again != l {
			t.Errorf("%q: %+v, %q: %+v, %v", text, l, l, again, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"keys":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := decode(data)
		if (doc == nil) == (err == nil) {
			t.Errorf("%v, %v", doc, err)
		}
	})
}

// A secret that is no longer good is told from the key that still is.
func TestGoodSecrets(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "own", "keys.json"))
	must(t, err)
	k, token, err := s.Create(t.Context(), New{Name: "a"})
	must(t, err)
	r := NewRing(s)
	defer r.Close()
	found, err := r.Check(token)
	must(t, err)
	good := func(id, secret string, want bool) {
		t.Helper()
		if got, err := r.Good(id, secret); err != nil || got != want {
			t.Errorf("%v, %v", got, err)
		}
	}
	good(k.ID, found.Secret, true)
	good(k.ID, "", true)
	good(k.ID, "0123", false)
	good("nobody", "", false)
	_, token, err = s.Rotate(t.Context(), "a", time.Hour)
	must(t, err)
	second, err := r.Check(token)
	must(t, err)
	good(k.ID, found.Secret, true) // the overlap
	good(k.ID, second.Secret, true)
	now := time.Now()
	r.mu.Lock()
	r.now = func() time.Time { return now.Add(2 * time.Hour) }
	r.mu.Unlock()
	good(k.ID, found.Secret, false)
	good(k.ID, second.Secret, true)
	_, _, err = s.Rotate(t.Context(), "a", 0)
	must(t, err)
	good(k.ID, second.Secret, false)
	brief, _, err := s.Create(t.Context(), New{Name: "brief", Expires: now.Add(3 * time.Hour)})
	must(t, err)
	good(brief.ID, "", true)
	r.mu.Lock()
	r.now = func() time.Time { return now.Add(4 * time.Hour) }
	r.mu.Unlock()
	good(brief.ID, "", false)
	good(k.ID, "", true)
}
