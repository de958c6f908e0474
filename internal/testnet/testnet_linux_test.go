package testnet

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// insideVariable says that this process is the supervisor of TestInternet.
const insideVariable = "SANDBOXTEST_IN_TESTNET"

// The servers answer in the supervisor's namespace, for root and for an ordinary user.
func TestInternet(t *testing.T) {
	if os.Getenv(insideVariable) == "1" {
		if !Inside() {
			t.Fatal("not in a test internet")
		}
		inside(t)
		return
	}
	users := map[string]*syscall.Credential{"same user": nil}
	dir := t.TempDir()
	exe := filepath.Join(dir, "test")
	if os.Geteuid() == 0 {
		users["ordinary user"] = &syscall.Credential{Uid: 61234, Gid: 61234}
		for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(exe, self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, who := range users {
		t.Run(name, func(t *testing.T) {
			args := []string{"-test.run", "^TestInternet$", "-test.v"}
			cmd := exec.CommandContext(t.Context(), exe, args...)
			Wrap(exe, cmd)
			if who != nil {
				// The user itself makes the user namespace.
				cmd = exec.CommandContext(t.Context(), exe, "-test.run", "^TestUser$", "-test.v")
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
				cmd.Env = append(os.Environ(), insideVariable+"=wrap")
			}
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if cmd.Env == nil {
				cmd.Env = append(os.Environ(), insideVariable+"=1")
			}
			cmd.Dir = "/"
			err := cmd.Run()
			if why, unavailable := Unavailable(err, out.String()); unavailable {
				t.Skip(why)
			}
			if err != nil || !strings.Contains(out.String(), "--- PASS: TestInternet") {
				t.Errorf("%v\n%s", err, out.Bytes())
			}
		})
	}
}

// TestUser wraps TestInternet as an ordinary user.
func TestUser(t *testing.T) {
	if os.Getenv(insideVariable) != "wrap" {
		t.Skip("TestInternet starts it")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestInternet$", "-test.v")
	Wrap(os.Args[0], cmd)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

func inside(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := Log(ctx); err != nil {
		t.Fatal(err)
	}
	get := func(url string) string {
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test
		}}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err.Error()
		}
		a, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		defer a.Body.Close()
		body, _ := io.ReadAll(a.Body)
		return a.Proto + " " + string(body)
	}
	for url, want := range map[string]string{
		"http://good.example/":                                 ":80 says hello as good.example",
		"https://bad.example/":                                 ":443 says hello as bad.example",
		"http://" + Metadata + "/":                             Metadata + ":80 says hello as " + Metadata,
		"http://[" + Private6 + "]/":                           "[" + Private6 + "]:80 says hello as [" + Private6 + "]",
		"http://six.example/":                                  "[" + Public6 + "]:80 says hello as six.example",
		"http://" + Chain + "/":                                Public + ":80 says hello as " + Chain,
		"http://" + Huge + "/":                                 Public + ":80 says hello as " + Huge,
		"http://a.wild.example/":                               "says hello as a.wild.example",
		"http://good.example/moved?to=http%3A%2F%2F" + Private: Private + ":80 says hello as " + Private,
	} {
		version := "HTTP/1.1 "
		if strings.HasPrefix(url, "https:") {
			version = "HTTP/2.0 "
		}
		if got := get(url); !strings.HasPrefix(got, version) || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
	first, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", Rebinding)
	second, again := net.DefaultResolver.LookupNetIP(ctx, "ip4", Rebinding)
	if err != nil || again != nil || len(first) != 1 || len(second) != 1 || first[0].String() != Public || second[0].String() != Private {
		t.Errorf("%s is first %v (%v), then %v (%v)", Rebinding, first, err, second, again)
	}
	if list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", "none.example"); err == nil {
		t.Errorf("none.example is %v", list)
	}
	for _, network := range []string{"tcp", "udp"} {
		c, err := net.Dial(network, net.JoinHostPort(Private, EchoPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		answer := make([]byte, 5)
		if _, err = io.WriteString(c, "hello"); err == nil {
			_, err = io.ReadFull(c, answer)
		}
		if err != nil || string(answer) != "hello" {
			t.Errorf("%s echo: %q, %v", network, answer, err)
		}
	}
	seen, err := Log(ctx)
	for _, want := range []struct{ service, local, host string }{
		{"http", Private, Private}, {"tls", "", "bad.example"}, {"dns", Gateway, "none.example."}, {"udp", Private, ""}, {"tcp", Private, ""},
	} {
		if !slices.ContainsFunc(seen, func(e Event) bool {
			return e.Service == want.service && (want.local == "" || e.At(want.local)) && e.Host == want.host
		}) {
			t.Errorf("the log has no %+v", want)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
