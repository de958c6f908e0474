package receipt

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const aResult = `{"success":true,"verdict":"ok","exit_code":0,"stdout":"hi <b>&\u2028\n",
 "stderr":"","stdout_truncated":false,"stderr_truncated":false,
"execution_time":0.0123,"memory_used":1048576,"phase":"run","metrics":{"wall_time":0.0123},"limits":{"memory":536870912},
"isolation":{"backend":"native","tier":"container","controls":{"seccomp":"enforced"},"missing":[]},"violations":[],
"language":"python","language_version":"3.11.2","phases":[],
"files":[{"path":"a.bin","size":2,"mode":420,"content":"//4=","encoding":"base64"},{"path":"gone","size":0,"not_taken":"a FIFO"}]}`

func aSigner(t testing.TB) *Signer {
	t.Helper()
	s, err := NewSigner(bytes.Repeat([]byte{7}, 32))
	must(t, err)
	return s
}

func aStatement(t testing.TB) Statement {
	t.Helper()
	o, err := Read([]byte(aResult))
	must(t, err)
	return Statement{
		Run: "r-1", Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)), RequestSHA256: audit.Digest([]byte(`{"code":"1"}`)),
		CodeSHA256:  audit.Digest([]byte("1")),
		StdinSHA256: audit.Digest(nil), Outcome: o, Audit: &audit.Link{Seq: 4, Hash: strings.Repeat("a", 64)},
	}
}

func anEnvelope(t testing.TB) []byte {
	t.Helper()
	e, err := aSigner(t).Sign(aStatement(t))
	must(t, err)
	text, err := json.Marshal(e)
	must(t, err)
	return text
}

func TestReceiptHasWhatWasSigned(t *testing.T) {
	key := aSigner(t).Public()
	st, err := Verify(anEnvelope(t), key)
	must(t, err)
	want := aStatement(t)
	if st.Run != want.Run || !st.Time.Equal(want.Time) || st.Server != key.ID() || st.Verdict != sandbox.VerdictOK ||
		*st.Audit != *want.Audit ||
		st.StdoutSHA256 != audit.Digest([]byte("hi <b>&\u2028\n")) || len(st.Files) != 1 ||
		st.Files[0] != (File{Path: "a.bin", Size: 2, SHA256: audit.Digest([]byte{0xff, 0xfe})}) {
		t.Errorf("%+v", st)
	}
	must(t, st.Matches([]byte(aResult)))
	must(t, st.MatchesRequest([]byte(`{"code":"1"}`)))
	if err := st.MatchesRequest([]byte(`{"code":"2"}`)); !errors.Is(err, ErrDiffers) {
		t.Error(err)
	}
}

// Verify detects every flipped bit of a receipt, and every missing or added byte.
func TestEveryChangedByteIsFound(t *testing.T) {
	t.Parallel()
	key, good := aSigner(t).Public(), anEnvelope(t)
	if _, err := Verify(good, key); err != nil {
		t.Fatal(err)
	}
	step := 5
	if testenv.All() {
		step = 1
	}
	for i := 0; i < len(good); i += step {
		for _, bit := range []int{0, i % 8, 5} { // the least, the one that makes another letter case, and one of the rest
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if st, err := Verify(bad, key); err == nil {
				t.Fatalf("byte %d, bit %d: %q is accepted: %+v", i, bit, bad, st)
			}
		}
		if _, err := Verify(append(bytes.Clone(good[:i]), good[i+1:]...), key); err == nil {
			t.Fatalf("without byte %d it is accepted", i)
		}
	}
	// White space between tokens does not count: people reformat JSON.
	var pretty bytes.Buffer
	must(t, json.Indent(&pretty, good, "", "  "))
	if _, err := Verify(pretty.Bytes(), key); err != nil {
		t.Error(err)
	}
}

// Matches detects every change of a result.
func TestEveryChangeOfTheResultIsFound(t *testing.T) {
	st := aStatement(t)
	for i := range aResult {
		bad := []byte(aResult)
		bad[i] ^= 1
		if c, err := Canonical(bad); err == nil {
			if same, _ := Canonical([]byte(aResult)); bytes.Equal(c, same) {
				continue // the same document in other words: \u2028 for itself, \n for white space
			}
		}
		if err := st.Matches(bad); err == nil {
			t.Fatalf("byte %d changed, and it is the same result: %s", i, bad[max(0, i-20):min(len(bad), i+20)])
		}
	}
	for change, names := range map[[2]string]string{
		{`"verdict":"ok"`, `"verdict":"time_limit"`}:            "verdict",
		{`"exit_code":0`, `"exit_code":1`}:                      "exit_code",
		{`"stdout":"hi`, `"stdout":"ho`}:                        "stdout",
		{`"stderr":""`, `"stderr":"x"`}:                         "stderr",
		{`"//4="`, `"//8="`}:                                    "files",
		{`"seccomp":"enforced"`, `"seccomp":"absent"`}:          "isolation",
		{`"python"`, `"ruby"`}:                                  "language",
		{`"memory_used":1048576`, `"memory_used":1048577`}:      "another field",
		{`"not_taken":"a FIFO"`, `"not_taken":"a device"`}:      "another field",
		{`"stdout_truncated":false`, `"stdout_truncated":true`}: "stdout",
	} {
		changed := strings.Replace(aResult, change[0], change[1], 1)
		if changed == aResult {
			t.Fatalf("%s is not in it", change[0])
		}
		if err := st.Matches([]byte(changed)); !errors.Is(err, ErrDiffers) || !strings.HasPrefix(err.Error(), names) {
			t.Errorf("%s: %v", change[1], err)
		}
	}
	for _, bad := range []string{``, `{}`, `[]`, `{"verdict":"ok","verdict":"ok"}`, `{"verdict":"ok","stdout":"!","stdout_encoding":"base64"}`,
		`{"verdict":"ok","stdout_encoding":"rot13"}`} {
		if err := st.Matches([]byte(bad)); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOthersCanNotSign(t *testing.T) {
	other, err := NewSigner(bytes.Repeat([]byte{8}, 32))
	must(t, err)
	var wrong *OtherKeyError
	if _, err := Verify(anEnvelope(t), other.Public()); !errors.As(err, &wrong) || wrong.Signed != aSigner(t).Public().ID() {
		t.Error(err)
	}
	// Another key's signature under our key id.
	e, err := other.Sign(aStatement(t))
	must(t, err)
	e.Signatures[0].KeyID = aSigner(t).Public().ID()
	text, err := json.Marshal(e)
	must(t, err)
	if _, err := Verify(text, aSigner(t).Public()); !errors.Is(err, ErrForged) {
		t.Error(err)
	}
	for name, change := range map[string]func(e *Envelope){
		"another type":      func(e *Envelope) { e.PayloadType = "text/plain" },
		"no signature":      func(e *Envelope) { e.Signatures = nil },
		"two signatures":    func(e *Envelope) { e.Signatures = append(e.Signatures, e.Signatures[0]) },
		"no payload":        func(e *Envelope) { e.Payload = "" },
		"base64 with lines": func(e *Envelope) { e.Payload = e.Payload[:4] + "\n" + e.Payload[4:] },
		"a short signature": func(e *Envelope) { e.Signatures[0].Sig = "AAAA" },
	} {
		var e Envelope
		must(t, json.Unmarshal(anEnvelope(t), &e))
		change(&e)
		text, err := json.Marshal(e)
		must(t, err)
		if _, err := Verify(text, aSigner(t).Public()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Verify(anEnvelope(t), nil); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
	if _, err := NewSigner(nil); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
}

func TestManyFilesAreCountedOnly(t *testing.T) {
	var files []string
	for i := range 40 {
		files = append(files, fmt.Sprintf(`{"path":"f%d","content":"x"}`, i))
	}
	doc := func(last string) []byte {
		return []byte(`{"verdict":"ok","stdout":"","files":[` + strings.Join(files, ",") + "," + last + `]}`)
	}
	o, err := Read(doc(`{"path":"z","content":"1"}`))
	must(t, err)
	if len(o.Files) != maxFiles || o.FilesLeftOut != 41-maxFiles {
		t.Errorf("%d files, %d left out", len(o.Files), o.FilesLeftOut)
	}
	if err := (&Statement{Outcome: o}).Matches(doc(`{"path":"z","content":"2"}`)); !errors.Is(err, ErrDiffers) {
		t.Errorf("one that is not named is changed: %v", err)
	}
}

func TestExtract(t *testing.T) {
	env := anEnvelope(t)
	for name, c := range map[string]struct {
		text   []byte
		result bool
	}{
		"an envelope":             {env, false},
		"a header":                {[]byte(base64.StdEncoding.EncodeToString(env) + "\n"), false},
		"a run":                   {fmt.Appendf(nil, `{"id":"r","result":%s,"receipt":%s}`, aResult, env), true},
		"a result with a receipt": {fmt.Appendf(nil, `%s,"receipt":%s}`, strings.TrimSuffix(aResult, "}"), env), true},
		"a run without a result":  {fmt.Appendf(nil, `{"id":"r","receipt":%s}`, env), false},
	} {
		got, result, err := Extract(c.text)
		must(t, err)
		st, err := Verify(got, aSigner(t).Public())
		if err != nil || (result != nil) != c.result {
			t.Errorf("%s: %v, result %s", name, err, result)
			continue
		}
		if c.result {
			must(t, st.Matches(result))
		}
	}
	for _, bad := range []string{"", "!", "{}", "[]", "{", "AAAA"} {
		if _, _, err := Extract([]byte(bad)); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestKeys(t *testing.T) {
	key := aSigner(t).Public()
	doc, err := json.Marshal(key.Document())
	must(t, err)
	for _, text := range []string{key.PEM(), "\n" + key.String() + "\n", string(doc)} {
		got, err := ParsePublicKey([]byte(text))
		if err != nil || !bytes.Equal(got, key) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	private := "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH\n-----END PRIVATE KEY-----\n"
	for text, want := range map[string]string{
		"":      "0 bytes",
		"abc":   "neither PEM nor base64",
		"AAAA":  "3 bytes",
		private: "private key",
		"{":     "unexpected end",
		`{"algorithm":"rsa","public_key":"AAAA"}`:                      `algorithm is "rsa"`,
		strings.ReplaceAll(key.PEM(), "PUBLIC", "STRANGE"):             "not an Ed25519 public key",
		key.PEM() + key.PEM():                                          "more text",
		"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n": "not an Ed25519 public key",
	} {
		if _, err := ParsePublicKey([]byte(text)); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if s, err := parsePrivate([]byte(private)); err != nil || !bytes.Equal(s.Public(), key) {
		t.Errorf("%v", err)
	}
}

func needOwnFiles(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows: nothing there promises that a file is one user's alone")
	}
}

// Concurrent openers make the key of a directory once, and only its owner can read it.
func TestOpenSigner(t *testing.T) {
	needOwnFiles(t)
	dir := filepath.Join(t.TempDir(), "server")
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			s, err := OpenSigner(dir)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.Public().ID()
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] || len(id) != idLength {
			t.Fatalf("%q", ids)
		}
	}
	own, err := OwnKey(dir)
	if err != nil || own.ID() != ids[0] {
		t.Errorf("%v, %v", own, err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700, keyFile: 0o600, PublicFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: %v, %v", name, info, err)
		}
	}
	if another, err := OpenSigner(filepath.Join(t.TempDir(), "other")); err != nil || another.Public().ID() == ids[0] {
		t.Errorf("two servers have one key: %v", err)
	}
	secret, err := os.ReadFile(filepath.Join(dir, keyFile))
	must(t, err)
	// What is wrong with it is said, and the key is not.
	must(t, os.Chmod(filepath.Join(dir, keyFile), 0o644))
	if _, err := OpenSigner(dir); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a key that others can read: %v", err)
	}
	must(t, os.Chmod(filepath.Join(dir, keyFile), 0o600))
	for _, bad := range [][]byte{[]byte("nonsense"), secret[:40], bytes.Replace(secret, []byte("MC4C"), []byte("MC4D"), 1)} {
		must(t, os.WriteFile(filepath.Join(dir, keyFile), bad, 0o600))
		_, err := OpenSigner(dir)
		if err == nil || !strings.Contains(err.Error(), keyFile) {
			t.Errorf("%q: %v", bad, err)
		}
		if lines := strings.Split(string(secret), "\n"); err != nil && strings.Contains(err.Error(), lines[1][:20]) {
			t.Errorf("the key is in the error: %v", err)
		}
	}
	if _, err := OwnKey(t.TempDir()); err == nil || !strings.Contains(err.Error(), "--key") {
		t.Error(err)
	}
}

func TestMatchesLog(t *testing.T) {
	needOwnFiles(t)
	log, err := audit.Open(filepath.Join(t.TempDir(), "state", "audit.jsonl"), audit.Options{})
	must(t, err)
	must(t, log.Append(audit.Entry{Run: "r-0"}))
	link, err := log.Record(audit.Entry{Run: "r-1"})
	must(t, err)
	must(t, log.Append(audit.Entry{Run: "r-2"}))
	must(t, (&Statement{Run: "r-1", Audit: &link}).MatchesLog(log))
	for _, bad := range []Statement{
		{Run: "r-1"}, {Run: "r-2", Audit: &link}, {Run: "r-1", Audit: &audit.Link{Seq: 9, Hash: link.Hash}},
		{Run: "r-1", Audit: &audit.Link{Seq: 2, Hash: "x"}},
	} {
		if err := bad.MatchesLog(log); err == nil {
			t.Errorf("%+v is in the log", bad)
		}
	}
}

// openssl verifies our signature by the DSSE specification.
func TestOpenSSLAgrees(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	dir := t.TempDir()
	var e Envelope
	must(t, json.Unmarshal(anEnvelope(t), &e))
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	must(t, err)
	sig, err := base64.StdEncoding.DecodeString(e.Signatures[0].Sig)
	must(t, err)
	message := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(payload), payload)
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, content, 0o600))
		return path
	}
	check := func(message []byte) error {
		out, err := exec.Command("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", file("key.pem", []byte(aSigner(t).Public().PEM())),
			"-rawin", "-in", file("message", message), "-sigfile", file("sig", sig)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	must(t, check(message))
	message[len(message)-2] ^= 1
	if check(message) == nil {
		t.Error("openssl accepts anything")
	}
}

func FuzzVerify(f *testing.F) {
	good := anEnvelope(f)
	f.Add(good)
	f.Add([]byte(`{"payloadType":"","payload":"","signatures":[{"keyid":"","sig":""}]}`))
	f.Add([]byte(`{}`))
	key := aSigner(f).Public()
	want, err := Canonical(good)
	must(f, err)
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := Verify(text, key); err == nil {
			if got, err := Canonical(text); err != nil || !bytes.Equal(got, want) {
				t.Errorf("accepted %q", text)
			}
		}
		_, _, _ = Extract(text)
		_, _ = ParsePublicKey(text)
	})
}

func FuzzCanonical(f *testing.F) {
	f.Add([]byte(aResult))
	f.Add([]byte(`{"b":[1,2.50,{"a":null}],"a":"\ud800<>"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := Canonical(text)
		if err != nil {
			return
		}
		twice, err := Canonical(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%q becomes %q, then %q: %v", text, once, twice, err)
		}
	})
}

func TestCanonical(t *testing.T) {
	got, err := Canonical([]byte(" {\"b\" : [ 1 , 2.50, {\"z\":null,\"y\":true} ],\n\"a\":\"<\\u003e\\u00e9\" } "))
	if want := `{"a":"<>é","b":[1,2.50,{"y":true,"z":null}]}`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{"", "{", "{}{}", `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, strings.Repeat("[", 300) + strings.Repeat("]", 300),
		"[1,]", "nul"} {
		if _, err := Canonical([]byte(bad)); err == nil {
			t.Errorf("%q has a canonical form", bad)
		}
	}
}

// TestNetworkIsSigned: a statement has what all phases reached and what was refused, each once and so many.
func TestNetworkIsSigned(t *testing.T) {
	const result = `{"verdict":"ok","phases":[
{"name":"compile","metrics":{"network":[{"host":"a.example","port":443,"protocol":"tcp","connections":1}]}},
{"name":"run","metrics":{"network":[{"host":"a.example","port":443,"protocol":"tcp"},{"host":"2001:db8::1","port":53,"protocol":"udp"}]}}],
"violations":[{"kind":"network","name":"b.example","detail":"the name b.example was not resolved"},{"kind":"network","detail":"no route"},
{"kind":"memory","detail":"x"}]}`
	got, err := Read([]byte(result))
	must(t, err)
	want := Network{Destinations: []string{"a.example:443/tcp", "[2001:db8::1]:53/udp"}, Refused: []string{"the name b.example was not resolved"}}
	if got.Network == nil || !reflect.DeepEqual(*got.Network, want) {
		t.Errorf("%+v", got.Network)
	}
	st := Statement{Outcome: got}
	must(t, st.Matches([]byte(result)))
	if err := st.Matches([]byte(strings.Replace(result, "a.example", "c.example", 1))); !errors.Is(err, ErrDiffers) ||
		!strings.Contains(err.Error(), "network") {
		t.Error(err)
	}
	if plain, err := Read([]byte(`{"verdict":"ok"}`)); err != nil || plain.Network != nil {
		t.Errorf("%+v, %v", plain.Network, err)
	}
	var many Network
	for i := range 2 * maxFiles {
		many.add(&many.Refused, strconv.Itoa(i))
	}
	if len(many.Refused) != maxFiles || many.LeftOut != maxFiles {
		t.Errorf("%+v", many)
	}
}
