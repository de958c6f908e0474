package listen

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		says    string
		exposed bool
	}{
		"unix:///run/me/s.sock": {"unix:///run/me/s.sock", false},
		"unix:/run/me/s.sock":   {"unix:///run/me/s.sock", false},
		"/run/me/s.sock":        {"unix:///run/me/s.sock", false},
		"127.0.0.1:8080":        {"127.0.0.1:8080", false},
		"127.8.9.10:0":          {"127.8.9.10:0", false},
		"[::1]:80":              {"[::1]:80", false},
		"[::ffff:127.0.0.1]:80": {"127.0.0.1:80", false},
		"localhost:80":          {"127.0.0.1:80", false},
		"LOCALHOST:80":          {"127.0.0.1:80", false},
		":8080":                 {"[::]:8080", true},
		"*:8080":                {"[::]:8080", true},
		"0.0.0.0:1":             {"0.0.0.0:1", true},
		"[::]:1":                {"[::]:1", true},
		"192.0.2.1:1":           {"192.0.2.1:1", true},
		"[::ffff:192.0.2.1]:1":  {"192.0.2.1:1", true},
	} {
		a, err := Parse(t.Context(), text)
		if err != nil || a.String() != want.says || a.Exposed() != want.exposed {
			t.Errorf("%q: %v, exposed %v, %v", text, a, a.Exposed(), err)
		}
		if kind := a.Via(false).Kind; (kind == Exposed) != want.exposed || (kind == Unix) != strings.HasPrefix(want.says, "unix:") {
			t.Errorf("%q is %s", text, kind)
		}
	}
	for text, says := range map[string]string{
		"": "not an address", "8080": "not an address", "127.0.0.1": "not an address", "127.0.0.1:http": "no port", "127.0.0.1:": "no port",
		"127.0.0.1:99999": "no port",
		"127.0.0.1:+80":   "no port", "127.0.0.1:-1": "no port",
		"http://127.0.0.1:80": "try: 127.0.0.1:80", "https://x:443": "--tls-cert", "unix://run/s": "not absolute", "unix:s": "not absolute",
		"unix:":            "not absolute",
		"unix:///run/../s": "write /s", "unix:///a/": "write /a", "unix:///a\x00b": "NUL", "unix:///" + strings.Repeat("a", 104): "fewer than",
	} {
		if a, err := Parse(t.Context(), text); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v, want %q", text, a, err, says)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"unix:///a", "127.0.0.1:1", "[::1%lo]:80", ":1", "localhost:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if host, _, found := strings.Cut(text, ":"); found && host != "localhost" && strings.Trim(host, "0123456789.[]") != "" &&
			!strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "unix") && host != "*" {
			return // a name: do not ask a resolver
		}
		a, err := Parse(t.Context(), text)
		if err != nil {
			return
		}
		again, err := Parse(t.Context(), a.String())
		if err != nil || again.Path != a.Path || again.TCP != a.TCP {
			t.Errorf("%q: %v, then %v, %v", text, a, again, err)
		}
	})
}
