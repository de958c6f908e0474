package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A run may take place at a server that runs already, which is faster:
//
//	--server auto   at the user's own, if it would do exactly what we would: the same version, in the same world (app.EnvironmentDigest). Whatever it can not
//	                do, or refuses, we do ourselves. Only the time that it takes differs.
//	--server never  here
//	--server URL    there, or not at all: what can not be done there is an error

// serverOptions are where a run takes place.
type serverOptions struct {
	server  string
	keyFile string
	ca      string
}

// Words in the place of a server's address, and how addresses begin.
const (
	serverAuto   = "auto"
	serverNever  = "never"
	socketScheme = "unix://"
	// keyVariable holds an API key itself. There is no such flag: every user of the machine can read a command line.
	keyVariable = environmentStem + "SERVER_KEY"
)

func (o *serverOptions) serverFlags(fs *pflag.FlagSet) {
	AddParsed(fs, &o.server, "server", serverAuto,
		"where it runs: auto (your own running server, if the result is the same), never, or the `address` of a server: unix:///path, "+
			"https://host", readServer)
	fs.StringVar(&o.keyFile, "server-key-file", "", "`file` with the API key for that server (or "+keyVariable+", the key itself)")
	fs.StringVar(&o.ca, "server-ca", "", "`file` with the certificates to trust for that server, in place of the system's")
}

func readServer(s string) (string, error) {
	path, socket := strings.CutPrefix(s, socketScheme)
	switch {
	case s == serverAuto, s == serverNever, isWeb(s), socket && filepath.IsAbs(path):
		return s, nil
	case socket:
		return "", errors.New("the path of a socket is absolute: unix:///run/user/1000/sandbox-run/server.sock")
	}
	return "", errors.New("not a server; use one of auto, never, unix:///path, https://host, http://host")
}

// isWeb reports whether an address takes net/http, which only the full executable has.
func isWeb(address string) bool {
	return strings.HasPrefix(address, "https://") || strings.HasPrefix(address, "http://")
}

func (o *serverOptions) named() bool {
	return o.server != "" && o.server != serverAuto && o.server != serverNever
}

// complete refuses what would be of no use.
func (o *serverOptions) complete(flags *pflag.FlagSet) error {
	for name, value := range map[string]string{"server-key-file": o.keyFile, "server-ca": o.ca} {
		if err := CheckNotEmpty(flags, name); err != nil {
			return err
		}
		if value != "" && given(flags, name) && !isWeb(o.server) {
			return sandbox.Invalid(name, "it is for --server https://…, and of no use without")
		}
	}
	return nil
}

// localServer is the user's own server. It is asked who it is while we still read the command line.
type localServer struct {
	transport *client.Unix
	askedAt   time.Time
	answered  chan struct{} // closed when it has answered
	session   *client.Connection
	err       error
}

// Times that a server of this machine may take for what takes it none.
const (
	findTimeout  = time.Second
	helloTimeout = 2 * time.Second
	// namedServerTimeout is for one that may be far away: its name is looked up, and a connection made and secured, before it can say
	// anything. Or systemd, which holds its socket, starts it just now.
	namedServerTimeout = 30 * time.Second
	// staleAfter is when a server may have stopped to wait for us.
	staleAfter = 10 * time.Second
)

// findLocalServer looks for the user's own server, and begins to ask it who it is; nil is none. Where there is none it costs one failed
// connect.
func findLocalServer() *localServer {
	path := wire.DefaultSocket()
	if path == "" {
		return nil
	}
	n := &localServer{transport: &client.Unix{Path: path, Trusted: checkOwner}}
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	if n.transport.Connect(ctx) != nil {
		return nil
	}
	n.askVersion()
	return n
}

func (n *localServer) askVersion() {
	n.askedAt, n.answered = time.Now(), make(chan struct{})
	go func() {
		defer close(n.answered)
		n.session, n.err = openSession(n.transport, helloTimeout)
	}()
}

func openSession(t client.Transport, patience time.Duration) (*client.Connection, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := client.New(t).OpenInteractive(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = fmt.Errorf("%w (for %v)", client.ErrIdleTimeout, patience)
	}
	return s, err
}

// checkOwner: what root's server does for root is not what we would do.
func checkOwner(p client.Peer) error {
	if p.UID >= 0 && p.UID == os.Geteuid() {
		return nil
	}
	return fmt.Errorf("%w: uid %d", client.ErrOtherUser, p.UID)
}

// serves reports whether the server would do what we would.
func (n *localServer) serves(c *Invocation) bool { return n.differs(c) == nil }

// differs says why the server is not used; nil if it is.
func (n *localServer) differs(c *Invocation) error {
	if <-n.answered; n.err != nil {
		return n.err
	}
	own, its := Version(debug.ReadBuildInfo()), n.session.Header.Get(wire.HeaderVersion)
	if its != own {
		return fmt.Errorf("it is version %.40q, and this is version %q; start it anew", its, own)
	}
	full, err := findFull()
	if c.full != nil {
		full, err = os.Executable()
	}
	switch {
	case err != nil:
		return err
	case n.session.Header.Get(app.EnvironmentHeader) != app.EnvironmentDigest(full):
		return errors.New("it would run programs with other things: its executable, mount namespace, languages.yaml, PATH or other variables differ from yours; start it anew from here")
	}
	return nil
}

// describeLocalServer says whether runs take place at a server of the user's own, and why.
func (c *Invocation) describeLocalServer() string {
	path := wire.DefaultSocket()
	if path == "" {
		return "none: there is no directory for its socket; set XDG_RUNTIME_DIR or " + wire.SocketVariable
	}
	n := &localServer{transport: &client.Unix{Path: path, Trusted: checkOwner}}
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	var err error
	if err = n.transport.Connect(ctx); err == nil {
		n.askVersion()
		defer n.close()
		err = n.differs(c)
	}
	switch chosen := os.Getenv(EnvironmentName("server")); {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("one may be at %s, and is not used: you may not connect to it", path)
	case errors.Is(err, client.ErrNoServer):
		return fmt.Sprintf("none at %s; runs take place here; sandbox-run serve starts one", path)
	case errors.Is(err, client.ErrOtherUser):
		return fmt.Sprintf("one at %s, and is not used: it is another user's (%v)", path, err)
	case err != nil:
		return fmt.Sprintf("one at %s, and is not used: %v", path, err)
	case chosen != "" && chosen != serverAuto:
		return fmt.Sprintf("one at %s, and is not used: %s is %s", path, EnvironmentName("server"), chosen)
	}
	return "one at " + path + ", and is used"
}

// takeSession gives the session to the caller, who closes it. It is nil if the server is not used.
func (n *localServer) takeSession(c *Invocation) *client.Connection {
	if <-n.answered; time.Since(n.askedAt) > staleAfter { // the program was typed meanwhile
		n.close()
		n.askVersion()
	}
	if !n.serves(c) {
		return nil
	}
	s := n.session
	n.session, n.err = nil, errTaken
	return s
}

// errTaken: the session of the local server was given to a run.
var errTaken = errors.New("its session is in use")

// close ends the connection. Of nothing, and twice, is fine.
func (n *localServer) close() {
	if n == nil {
		return
	}
	if <-n.answered; n.session != nil {
		_ = n.session.Close()
	}
	_ = n.transport.Close()
}

// localFlags are the flags whose runs take place here: they are about things of this machine, or of this process, that a server does not
// give away by itself (D12), or has of its own.
var localFlags = []string{
	"dry-run", "backend", "runtime", "docker-host", "volume", "workspace", "workspace-cap", "workspace-inodes", "spill", "audit-log", "pull",
}

// localReasons are the reasons of localFlags, for people.
var localReasons = map[string]string{
	"dry-run": "a server's plans are its own", "backend": "which backend it uses is the server's to say", "runtime": "which runtime it uses is the server's to say",
	"docker-host": "which backend it uses is the server's to say", "volume": "a server shows nothing of this machine", "workspace": "workspaces are kept here",
	"workspace-cap": "workspaces are kept here", "workspace-inodes": "workspaces are kept here", "spill": "a server writes no files here",
	"audit-log": "a server keeps its own log", "pull": "a server gets no images for its clients",
}

// localFlag is the flag because of which a run can not take place at a server, and why; "" is none.
func localFlag(flags *pflag.FlagSet, auto bool) (flag, why string) {
	value := func(name string) string { return flags.Lookup(name).Value.String() }
	for _, name := range localFlags {
		// One that says what holds anyway changes nothing.
		if !flags.Changed(name) || name == "backend" && value(name) == app.Auto || (name == "dry-run" || name == "pull") && value(name) == "false" {
			continue
		}
		return name, localReasons[name]
	}
	// Other walls may take another backend, which we would choose for this run; less than the default is not a server's to give.
	switch {
	case auto && value("require") != string(sandbox.TierContainer):
		return "require", "another tier may take another backend"
	case auto && value("writable-root") == "true":
		return "writable-root", "a server allows it only if its operator does"
	case auto && value("strict") == "true":
		return "strict", "it may take another backend"
	}
	return "", ""
}

// open is the way to the server that was named.
func (o *serverOptions) open(c *Invocation) (client.Transport, error) {
	if path, ok := strings.CutPrefix(o.server, socketScheme); ok {
		return &client.Unix{Path: path}, nil
	}
	key := os.Getenv(keyVariable)
	if o.keyFile != "" {
		text, err := os.ReadFile(o.keyFile)
		if err != nil {
			return nil, sandbox.Invalid("server-key-file", "%w", err)
		}
		key = strings.TrimSpace(string(text))
	}
	if c.full == nil { // handOverParsed has seen to it
		return nil, &sandbox.Error{Op: "--server", Kind: sandbox.ErrUnsupported, Err: errors.New("this executable knows unix sockets only")}
	}
	return c.full.Web(o.server, key, o.ca)
}

// sameVersion refuses a server of another version: what it makes of a request may be something else.
func sameVersion(h client.Header, server string) error {
	own, its := Version(debug.ReadBuildInfo()), h.Get(wire.HeaderVersion)
	if its == own {
		return nil
	}
	if its == "" {
		its = "unknown"
	}
	return &sandbox.Error{
		Op: "server " + server, Err: fmt.Errorf("it is version %s, and %s is version %s", its, CommandName, own),
		Hint: "executables of one version, here and there",
	}
}

func explainUnreachable(server string, err error) error {
	var problem *client.Problem
	var ours *sandbox.Error
	if errors.As(err, &problem) || errors.As(err, &ours) {
		return err
	}
	e := &sandbox.Error{Op: "server " + server, Err: err, Hint: "--server never, to run it here"}
	if errors.Is(err, client.ErrNoServer) {
		e.Err, e.Hint = plainSocketError(err), "sandbox-run serve, or --server never"
	}
	if errors.Is(err, client.ErrOtherUser) {
		e.Kind = sandbox.ErrRefused
	}
	return e
}

// plainSocketError leaves the errno of a failed connect.
func plainSocketError(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		return fmt.Errorf("no server listens there: %w", call.Err)
	}
	return err
}
