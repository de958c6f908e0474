package remote

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

func basicAuth(user, password string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, _ := r.BasicAuth(); u == user && p == password {
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
}

// tokens is a registry's token server. A token is good for one repository and a number of requests.
type tokens struct {
	user, password string
	uses           int // 0 is any number

	mu      sync.Mutex
	valid   map[string]int
	granted int
}

func (s *tokens) guard(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path == "/token" {
		s.grant(w, r)
		return false
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if used, ok := s.valid[token]; ok && (s.uses == 0 || used < s.uses) {
		s.valid[token]++
		return true
	}
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, r.Host))
	w.WriteHeader(http.StatusUnauthorized)
	return false
}

func (s *tokens) grant(w http.ResponseWriter, r *http.Request) {
	if u, p, _ := r.BasicAuth(); u != s.user || p != s.password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if !strings.HasPrefix(r.URL.Query().Get("scope"), "repository:") || !strings.HasSuffix(r.URL.Query().Get("scope"), ":pull") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.valid == nil {
		s.valid = map[string]int{}
	}
	token := rand.Text()
	s.valid[token] = 0
	s.granted++
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 60})
}

// login is what `docker login` does, without a helper.
func login(t *testing.T, host, user, password string) {
	t.Helper()
	writeConfig(t, filepath.Join(os.Getenv("HOME"), ".docker", "config.json"),
		map[string]any{"auths": map[string]any{host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" +
			password))}}})
}

func writeConfig(t *testing.T, path string, value any) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	text, ok := value.(string)
	if !ok {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		text = string(data)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAuthentication(t *testing.T) {
	reg := newRegistry(t)
	reg.push("private/thing:1", imageOf(t, "linux/amd64", 11, 1000, 2000, 3000))
	for name, guard := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"basic": basicAuth("user", "pass:word"), "bearer": (&tokens{user: "user", password: "pass:word"}).guard,
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if guard(w, r) {
					next.ServeHTTP(w, r)
				}
			})
			// Without credentials, and with wrong ones: once, and with the way to get in.
			err := pullFails(t, newStore(t), reg.ref("private/thing:1"), quick())
			says(t, err, "docker login "+reg.host(), "401")
			if !errors.Is(err, ErrUnauthorized) {
				t.Errorf("%v", err)
			}
			login(t, reg.host(), "user", "wrongsecret")
			reg.seen("")
			err = pullFails(t, newStore(t), reg.ref("private/thing:1"), quick())
			says(t, err, "docker login "+reg.host(), filepath.Join(".docker", "config.json"))
			if strings.Contains(err.Error(), "wrongsecret") {
				t.Errorf("A1: the password is in the error: %v", err)
			}
			if n := len(reg.seen("")); n > 6 {
				t.Errorf("%d requests with a wrong password", n)
			}
			login(t, reg.host(), "user", "pass:word")
			pullWorks(t, newStore(t), reg.ref("private/thing:1"), quick())
		})
	}
}

// A token that runs out in the middle is replaced, once for all layers that find out.
func TestTokenRunsOut(t *testing.T) {
	reg := newRegistry(t)
	reg.push("private:1", imageOf(t, "linux/amd64", 12, 1000, 2000, 3000, 4000, 5000, 6000))
	login(t, reg.host(), "user", "secret")
	server := &tokens{user: "user", password: "secret", uses: 4}
	reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if server.guard(w, r) {
			next.ServeHTTP(w, r)
		}
	})
	opts := quick()
	opts.Parallel = 2 // more might use up a new token before the one who got it
	pullWorks(t, newStore(t), reg.ref("private:1"), opts)
	if server.granted < 2 || server.granted > 4 {
		t.Errorf("%d tokens for eight requests of four uses each", server.granted)
	}
}

func TestCredentialSources(t *testing.T) {
	helpers := t.TempDir()
	script := func(name, body string) {
		if err := os.WriteFile(filepath.Join(helpers, "docker-credential-"+name), []byte("#!/bin/sh\n"+body), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script("good", `read server; [ "$1" = get ] && echo "{\"ServerURL\":\"$server\",\"Username\":\"helped\",\"Secret\":\"$server\"}"`)
	script("token", `echo '{"Username":"<token>","Secret":"identity"}'`)
	script("none", "echo 'credentials not found in native keychain'; exit 1")
	script("broken", "printf 'keychain is \\033[31mlocked'; exit 3")
	script("nonsense", "echo hello")
	script("hang", "exec sleep 60")
	script("loud", "yes | head -c 5000000; exit 1")
	t.Setenv("PATH", helpers+":"+os.Getenv("PATH"))

	auth := func(user string) map[string]string {
		return map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":pw"))}
	}
	auths := func(entries ...string) map[string]any {
		out := map[string]any{}
		for _, e := range entries {
			key, user, _ := strings.Cut(e, " ")
			out[key] = auth(user)
		}
		return map[string]any{"auths": out}
	}
	home := func(parts ...string) string { return filepath.Join(append([]string{os.Getenv("HOME")}, parts...)...) }
	docker := func() string { return home(".docker", "config.json") }
	type want struct {
		user, password, token string
		err                   string
	}
	for name, c := range map[string]struct {
		setup    func(t *testing.T)
		registry string
		want     want
	}{
		"nothing": {func(*testing.T) {}, "r.example", want{}},
		"docker": {func(t *testing.T) { writeConfig(t, docker(), auths("r.example one", "other.example two")) }, "r.example",
			want{user: "one", password: "pw"}},
		"another's":    {func(t *testing.T) { writeConfig(t, docker(), auths("r.example one")) }, "r.example.evil.example", want{}},
		"another port": {func(t *testing.T) { writeConfig(t, docker(), auths("r.example:5000 one")) }, "r.example", want{}},
		"with scheme": {func(t *testing.T) { writeConfig(t, docker(), auths("https://r.example/v2/ one")) }, "r.example",
			want{user: "one", password: "pw"}},
		"hub": {func(t *testing.T) { writeConfig(t, docker(), auths(hubKey+" hub")) }, "docker.io", want{user: "hub", password: "pw"}},
		"hub, podman's": {func(t *testing.T) { writeConfig(t, home(".config", "containers", "auth.json"), auths("docker.io hub")) }, "docker.io",
			want{user: "hub", password: "pw"}},
		"empty file": {func(t *testing.T) { writeConfig(t, docker(), "") }, "r.example", want{}},
		"no JSON": {func(t *testing.T) { writeConfig(t, docker(), `{"auths": {"r.example": {"auth": "c2VjcmV0`) }, "r.example",
			want{err: "not JSON"}},
		"wrong type": {func(t *testing.T) { writeConfig(t, docker(), `{"auths": ["r.example"]}`) }, "r.example", want{err: "auths"}},
		"no base64": {func(t *testing.T) { writeConfig(t, docker(), `{"auths": {"r.example": {"auth": "%%%"}}}`) }, "r.example",
			want{err: "base64"}},
		"a directory": {func(t *testing.T) { _ = os.MkdirAll(docker(), 0o700) }, "r.example", want{err: "regular"}},
		"plain fields": {func(t *testing.T) {
			writeConfig(t, docker(), `{"auths": {"r.example": {"username": "u", "password": "p"}}}`)
		}, "r.example", want{user: "u", password: "p"}},
		"identity token": {func(t *testing.T) { writeConfig(t, docker(), `{"auths": {"r.example": {"identitytoken": "id"}}}`) }, "r.example",
			want{token: "id"}},
		"other things": {func(t *testing.T) {
			writeConfig(t, docker(), `{"proxies": {"default": 3}, "psFormat": [], "auths": {"r.example": {"auth": "dTpw"}}}`)
		}, "r.example", want{user: "u", password: "p"}},
		"namespace": {func(t *testing.T) {
			writeConfig(t, docker(), auths("r.example reg", "r.example/team team", "r.example/team/app app", "r.example/te te"))
		}, "r.example", want{user: "app", password: "pw"}},
		"namespace's": {func(t *testing.T) { writeConfig(t, docker(), auths("r.example reg", "r.example/team team")) }, "r.example",
			want{user: "team", password: "pw"}},
		"DOCKER_CONFIG": {func(t *testing.T) {
			writeConfig(t, docker(), auths("r.example no"))
			t.Setenv("DOCKER_CONFIG", home("else"))
			writeConfig(t, home("else", "config.json"), auths("r.example yes"))
		}, "r.example", want{user: "yes", password: "pw"}},
		"DOCKER_AUTH": {func(t *testing.T) { t.Setenv("DOCKER_AUTH_CONFIG", `{"auths": {"r.example": {"auth": "dTpw"}}}`) }, "r.example",
			want{user: "u", password: "p"}},
		"podman": {func(t *testing.T) { writeConfig(t, home(".config", "containers", "auth.json"), auths("r.example pod")) }, "r.example",
			want{user: "pod", password: "pw"}},
		"podman, running": {func(t *testing.T) {
			t.Setenv("XDG_RUNTIME_DIR", home("run"))
			writeConfig(t, home("run", "containers", "auth.json"), auths("r.example run"))
		}, "r.example", want{user: "run", password: "pw"}},
		"podman's variable": {func(t *testing.T) {
			t.Setenv("REGISTRY_AUTH_FILE", home("a.json"))
			writeConfig(t, home("a.json"), auths("r.example var"))
		}, "r.example", want{user: "var", password: "pw"}},
		"docker has others": {func(t *testing.T) {
			writeConfig(t, docker(), auths("x.example no"))
			writeConfig(t, home(".config", "containers", "auth.json"), auths("r.example pod"))
		}, "r.example", want{user: "pod", password: "pw"}},
		"store": {func(t *testing.T) { writeConfig(t, docker(), `{"credsStore": "good", "auths": {"r.example": {}}}`) }, "r.example",
			want{user: "helped", password: "r.example"}},
		"store, hub": {func(t *testing.T) { writeConfig(t, docker(), `{"credsStore": "good"}`) }, "docker.io",
			want{user: "helped", password: hubKey}},
		"store has nothing": {func(t *testing.T) { writeConfig(t, docker(), `{"credsStore": "none"}`) }, "r.example", want{}},
		"store is newer": {func(t *testing.T) {
			writeConfig(t, docker(), `{"credsStore": "none", "auths": {"r.example": {"auth": "dTpw"}}}`)
		}, "r.example", want{user: "u", password: "p"}},
		"helper": {func(t *testing.T) {
			writeConfig(t, docker(), `{"credsStore": "hang", "credHelpers": {"r.example": "good"}}`)
		}, "r.example", want{user: "helped", password: "r.example"}},
		"helper, hub": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"docker.io": "good"}}`) }, "docker.io",
			want{user: "helped", password: hubKey}},
		"helper's token": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "token"}}`) }, "r.example",
			want{user: "<token>", token: "identity"}},
		"helper is missing": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "gone"}}`) }, "r.example",
			want{err: "docker-credential-gone is not on PATH"}},
		"helper fails": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "broken"}}`) }, "r.example",
			want{err: "keychain is ?[31mlocked"}},
		"helper's nonsense": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "nonsense"}}`) }, "r.example",
			want{err: "not JSON"}},
		"helper hangs": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "hang"}}`) }, "r.example",
			want{err: "did not answer"}},
		"helper is loud": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "loud"}}`) }, "r.example",
			want{err: "docker-credential-loud"}},
		"helper is a path": {func(t *testing.T) { writeConfig(t, docker(), `{"credHelpers": {"r.example": "../../bin/sh"}}`) }, "r.example",
			want{err: "not the name of a program"}},
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			c.setup(t)
			if name == "helper hangs" { // the others have the time that a busy machine takes
				old := helperWait
				helperWait = 500 * time.Millisecond
				defer func() { helperWait = old }()
			}
			start := time.Now()
			got, source, err := credentials(t.Context(), c.registry, "team/app")
			if took := time.Since(start); took > 25*time.Second {
				t.Errorf("it took %s", took)
			}
			if c.want.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.want.err) {
					t.Errorf("error %v, want %q", err, c.want.err)
				} else if strings.Contains(err.Error(), "c2VjcmV0") || len(err.Error()) > 1000 {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (got == authn.Anonymous) != (c.want == want{}) || (source == "") != (c.want == want{}) {
				t.Errorf("%v from %q", got, source)
			}
			a, err := got.Authorization()
			if err != nil {
				t.Fatal(err)
			}
			if a.Username != c.want.user || a.Password != c.want.password || a.IdentityToken != c.want.token {
				t.Errorf("got %+v, want %+v", a, c.want)
			}
		})
	}
}
