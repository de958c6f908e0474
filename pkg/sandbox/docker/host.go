package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// checkHost refuses an address that the client can not use.
func checkHost(host string) error {
	if host == "" {
		return nil
	}
	u, err := url.Parse(host)
	if err != nil || u.Scheme == "" || u.Host == "" && u.Path == "" {
		return sandbox.Invalid("docker-host", "%q is not an address like unix:///var/run/docker.sock or tcp://host:2376", host)
	}
	switch u.Scheme {
	case "unix", "tcp", "npipe", "http", "https":
		return nil
	case "ssh":
		return sandbox.Invalid("docker-host", "%q: forward the socket yourself (ssh -L /tmp/docker.sock:/var/run/docker.sock …) and name "+
			"unix:///tmp/docker.sock", host)
	}
	return sandbox.Invalid("docker-host", "%q: unknown scheme %q; use one of unix, tcp, npipe", host, u.Scheme)
}

// findHost finds the daemon's address: the given one, that of the environment or of Docker's own configuration, that of
// testcontainers, or the socket of one of the usual desktops.
func findHost(ctx context.Context, asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	for _, host := range []string{os.Getenv("DOCKER_HOST"), currentContext()} {
		if host != "" {
			return host, checkHost(host)
		}
	}
	silence.Do(func() { tclog.SetDefault(noLog{}) })
	if c, err := testcontainers.NewDockerClientWithOpts(ctx); err == nil {
		host := c.DaemonHost()
		_ = c.Close()
		if isThere(host) {
			return host, nil
		}
	}
	for _, socket := range usualSockets() {
		if isThere("unix://" + socket) {
			return "unix://" + socket, nil
		}
	}
	return "", unreachable(ctx, "", fs.ErrNotExist)
}

// noLog silences testcontainers, which prints what it finds.
type noLog struct{}

func (noLog) Printf(string, ...any) {}

var silence sync.Once

// isThere reports whether a daemon may listen at an address: of a socket, that the file exists.
func isThere(host string) bool {
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return host != ""
	}
	st, err := os.Stat(path)
	return err == nil && st.Mode()&fs.ModeSocket != 0
}

// usualSockets are those of Docker, Docker Desktop, Colima, Rancher Desktop, Podman and its machines.
func usualSockets() []string {
	list := []string{"/var/run/docker.sock", "/run/podman/podman.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		list = append(list, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman", "podman.sock"))
	}
	if uid := os.Getuid(); uid > 0 {
		run := "/run/user/" + strconv.Itoa(uid)
		list = append(list, run+"/docker.sock", run+"/podman/podman.sock")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return list
	}
	for _, p := range []string{
		".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock", ".colima/docker.sock", ".rd/docker.sock",
		".local/share/containers/podman/machine/podman.sock", ".local/share/containers/podman/machine/qemu/podman.sock",
	} {
		list = append(list, filepath.Join(home, filepath.FromSlash(p)))
	}
	return list
}

// maxConfig bounds the size of Docker's own configuration.
const maxConfig = 1 << 20

// currentContext is the address of the context that `docker context use` has chosen; "" if that is the default.
func currentContext() string {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".docker")
	}
	name := os.Getenv("DOCKER_CONTEXT")
	if name == "" {
		var config struct {
			CurrentContext string `json:"currentContext"`
		}
		if json.Unmarshal(readSome(filepath.Join(dir, "config.json")), &config) != nil {
			return ""
		}
		name = config.CurrentContext
	}
	if name == "" || name == "default" {
		return ""
	}
	sum := sha256.Sum256([]byte(name))
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	if json.Unmarshal(readSome(filepath.Join(dir, "contexts", "meta", hex.EncodeToString(sum[:]), "meta.json")), &meta) != nil {
		return ""
	}
	return meta.Endpoints["docker"].Host
}

func readSome(file string) []byte {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxConfig)) // an incomplete file is no JSON
	return b
}

// oldDaemon is the error of a daemon whose API is too old.
type oldDaemon struct{ version string }

func (o *oldDaemon) Error() string {
	return fmt.Sprintf("the daemon's API version is %s; %s is needed (Docker 20.10, Podman 3)", o.version, minAPI)
}

// tooOld compares versions of the API.
func tooOld(version string) bool {
	major, minor, _ := strings.Cut(version, ".")
	a, errA := strconv.Atoi(major)
	n, errN := strconv.Atoi(minor)
	if errA != nil || errN != nil {
		return true
	}
	return a < 1 || a == 1 && n < 41
}

// unreachable explains why the connection to a daemon failed, with the next step.
func unreachable(ctx context.Context, host string, err error) error {
	e := &sandbox.Error{Backend: Name, Op: "connect to " + host, Stage: "daemon", Err: err}
	if host == "" {
		e.Op, e.Err = "find a daemon", errNoSocket
	}
	socket := strings.TrimPrefix(host, "unix://")
	if client.IsErrConnectionFailed(err) && socket != host {
		// The client hides the reason.
		c, dialErr := net.DialTimeout("unix", socket, dialTimeout)
		if dialErr == nil {
			_ = c.Close()
		} else {
			err = dialErr
			e.Err = dialErr
		}
	}
	switch old := new(*oldDaemon); {
	case errors.As(err, old):
		e.Hint = "install a newer Docker or Podman"
	case errors.Is(err, syscall.EACCES):
		e.Kind, e.Hint = sandbox.ErrRefused, "add yourself to the group that owns "+socket+" (sudo usermod -aG docker $USER), and log in anew"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOENT):
		e.Hint = "sandbox-run setup docker, or name a socket with --docker-host"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Hint = "start the daemon (sudo systemctl start docker), or name another with --docker-host"
	case ctx.Err() != nil:
		e.Err = context.Cause(ctx)
		e.Hint = "check that the daemon works: docker version"
	default:
		e.Hint = "docker version"
	}
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			e.Hint = "start Docker Desktop, Colima, Rancher Desktop or a Podman machine, or name a socket with --docker-host"
		}
	}
	return e
}

const dialTimeout = 2 * time.Second

// failure is an error of this backend with the next step.
func failure(op, stage string, err error) error {
	if err == nil {
		return nil
	}
	if e := new(*sandbox.Error); errors.As(err, e) {
		return err
	}
	return &sandbox.Error{Backend: Name, Op: op, Stage: stage, Err: err, Hint: "sandbox-run doctor --backend docker"}
}
