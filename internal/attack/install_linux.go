package attack

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func installCases() []attackCase {
	return []attackCase{{"N9", "an installation of packages that reaches beyond its registry", installations}}
}

// installScript attacks from the installing sandbox, with the address of its registry where that can be reached.
const installScript = `reach() { "$ATTACKER" "$WORD" "$SANDBOX_ATTACKER" reach "$@"; }
echo "environment: $(cat /proc/*/environ 2>/dev/null | tr '\0' ' ')"
if [ "$INDEX" ]; then inside=${INDEX#http://}; reach tcp "${inside%%/*}:80" "follow /${inside#*/}"; fi
reach `

// installations attacks what an installation must not have: other hosts, the host's loopback, the run's variables, another layer, and the
// store that the layers are in. While it has its registry and afterwards it is tried from the same sandbox.
func installations(t *trial) {
	if t.o.Install == nil {
		t.skipped = "no installations can be carried out here: doctor --attack can, where there is a sandbox-kit"
		return
	}
	const ofRegistry, ofHost = "answer of the registry", "answer of the host"
	secret := "s3cret-" + t.mark
	serve := func(text string) (address string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		t.must(err)
		answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
		s := &http.Server{ReadHeaderTimeout: caseTimeout, Handler: http.HandlerFunc(answer)}
		t.later(func() { _ = s.Close() })
		go func() { _ = s.Serve(l) }() // until Close
		return l.Addr().String()
	}
	registry, host := serve(ofRegistry), serve(ofHost)
	// The control: the host's server answers on the host.
	control := "ok"
	if said, err := t.fetch("http://" + host); err != nil || said != ofHost {
		control = fmt.Sprintf("%q, %v", said, err)
	}
	t.control(control == "ok", "outside: the host's server", control)

	do := func(i Installation) *Installed {
		i.Index, i.Mark = "http://"+registry+"/", t.mark
		done, err := t.o.Install(t.ctx, i)
		if errors.Is(err, sandbox.ErrUnsupported) {
			t.skipped = err.Error()
			return nil
		}
		if err != nil {
			t.abort("install: %v", err)
		}
		return done
	}
	// Another layer, with a secret that its own run can read.
	other := do(Installation{Name: "other", Attack: "echo " + secret + " > layer/secret", Run: "cat " + LayerInside + "/secret"})
	if other == nil {
		return
	}
	t.control(strings.TrimSpace(string(other.Run)) == secret, "the layer's own run", string(other.Run))
	kept := filepath.Join(other.Layer, "secret")
	text, err := os.ReadFile(kept)
	t.control(err == nil && strings.TrimSpace(string(text)) == secret, "the layer on the host", fmt.Sprint(err))

	var list []attempt
	_, port, err := net.SplitHostPort(host)
	t.must(err)
	for _, address := range []string{host, "169.254.169.254:80", "10.0.0.1:80", "192.0.2.1:80", "[::1]:" + port, "example.com:80"} {
		list = append(list, web(address, "x"))
	}
	script := installScript
	for _, a := range flat(list) {
		script += "'" + a + "' "
	}
	script += fmt.Sprintf("\n"+`"$ATTACKER" "$WORD" "$SANDBOX_ATTACKER" read '%s' '%s/secret'`+"\n", kept, LayerInside)
	const variable = "RUN_SECRET"
	it := do(Installation{Name: "hostile", Attack: script, Env: map[string]string{variable: secret}, Run: "echo $" + variable})
	if it == nil {
		return
	}
	t.control(strings.TrimSpace(string(it.Run)) == secret, "the run has its own variables", string(it.Run))
	for _, step := range []struct {
		where string
		said  []byte
	}{{"with its registry", it.Online}, {"afterwards", it.Offline}} {
		said := answers(hostile.Parse(step.said))
		online := step.where == "with its registry"
		reached := ""
		for _, a := range said {
			if strings.Contains(a.Name, " follow ") {
				reached = a.Got + " " + a.Detail
			}
		}
		if online {
			t.control(reached == "ok "+ofRegistry, "the registry", reached)
		}
		for _, a := range list {
			got := said.of(a.name())
			outside := "" // others may not exist on this machine's network
			if a.address == host {
				outside = control
			}
			t.judge(got.Got != "ok" && got.Got != "no answer", step.where+": "+a.name(), say(got), outside)
		}
		for _, name := range []string{kept, LayerInside + "/secret"} {
			got := said.of(name)
			t.judge(got.Got == "ENOENT", step.where+": another layer", say(got), "ok")
		}
		_, environment, found := strings.Cut(string(step.said), "environment: ")
		environment, _, _ = strings.Cut(environment, "\n")
		t.control(found && strings.Contains(environment, t.mark), step.where+": the environment can be read", environment)
		t.judge(!strings.Contains(string(step.said), secret), step.where+": the run's variables", "absent", secret)
	}
}

func (t *trial) fetch(address string) (string, error) {
	r, err := http.NewRequestWithContext(t.ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}
