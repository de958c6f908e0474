package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A run may take place at a running server, which is faster:
//
//	--server auto   at the local server, if the result is the same as here: same version, same environment digest
//	                (app.EnvironmentDigest). A run that the server can not do, or refuses, takes place here.
//	--server never  here
//	--server URL    at that server; a run that the server can not do is an error

// serverOptions are the flags that choose where a run takes place.
type serverOptions struct {
	server  string
	keyFile string
	ca      string
}

// Values of --server other than an address, and the scheme of unix sockets.
const (
	serverAuto   = "auto"
	serverNever  = "never"
	socketScheme = "unix://"
	// keyVariable contains an API key. It has no flag, because every user of the machine can read a command line.
	keyVariable = environmentStem + "SERVER_KEY"
)

func (o *serverOptions) addServerFlags(fs *pflag.FlagSet) {
	AddParsed(fs, &o.server, "server", serverAuto,
		"where it runs: auto (your own running server, if the result is the same), never, or the `address` of a server: unix:///path, "+
			"https://host", readServer)
	fs.StringVar(&o.keyFile, "server-key-file", "", "`file` with the API key for that server (or set "+keyVariable+" to the key)")
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

// isWeb reports whether an address needs net/http, which only the full executable has.
func isWeb(address string) bool {
	return strings.HasPrefix(address, "https://") || strings.HasPrefix(address, "http://")
}

func (o *serverOptions) namesServer() bool {
	return o.server != "" && o.server != serverAuto && o.server != serverNever
}

// complete refuses flags that have no effect.
func (o *serverOptions) complete(flags *pflag.FlagSet) error {
	for name, value := range map[string]string{"server-key-file": o.keyFile, "server-ca": o.ca} {
		if err := CheckNotEmpty(flags, name); err != nil {
			return err
		}
		if value != "" && isOnCommandLine(flags, name) && !isWeb(o.server) {
			return sandbox.Invalid(name, "it is for --server https://…, and of no use without")
		}
	}
	return nil
}

// localServer is a connection to the user's own server. Its version is requested while the command line is parsed.
type localServer struct {
	transport *client.Unix
	askedAt   time.Time
	answered  chan struct{} // closed when session or err is set
	session   *client.Connection
	err       error
}

const (
	findTimeout  = time.Second     // to connect to the local server
	helloTimeout = 2 * time.Second // to open a session with it
	// namedServerTimeout covers DNS, connect and TLS to a server on another machine, and the start of a server by systemd.
	namedServerTimeout = 30 * time.Second
	// staleAfter is the age after which the server may have closed an unused session.
	staleAfter = 10 * time.Second
)

// findLocalServer connects to the user's own server and requests its version. It returns nil if there is no server; that costs one
// failed connect.
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

func openSession(t client.Transport, timeout time.Duration) (*client.Connection, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := client.New(t).OpenInteractive(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = fmt.Errorf("%w (for %v)", client.ErrIdleTimeout, timeout)
	}
	return s, err
}

// checkOwner refuses a server of another user, root included: its runs have other rights than a run here.
func checkOwner(p client.Peer) error {
	if p.UID >= 0 && p.UID == os.Geteuid() {
		return nil
	}
	return fmt.Errorf("%w: uid %d", client.ErrOtherUser, p.UID)
}

// canRun reports whether a run at the server has the same result as a run here.
func (n *localServer) canRun(c *Invocation) bool { return n.explainUnused(c) == nil }

// explainUnused returns the reason why the server is not used, or nil if it is used. It waits for the server's answer.
func (n *localServer) explainUnused(c *Invocation) error {
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
		return errors.New("it would run programs with other things: its executable, mount namespace, languages.yaml, PATH or other " +
			"variables differ from yours; start it anew from here")
	}
	return nil
}

// describeLocalServer reports whether runs take place at the local server and, if not, why.
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
		err = n.explainUnused(c)
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

// takeSession returns the session, which the caller closes. It returns nil if the server is not used.
func (n *localServer) takeSession(c *Invocation) *client.Connection {
	if <-n.answered; time.Since(n.askedAt) > staleAfter { // the code may have been typed on standard input meanwhile
		n.close()
		n.askVersion()
	}
	if !n.canRun(c) {
		return nil
	}
	s := n.session
	n.session, n.err = nil, errSessionTaken
	return s
}

// errSessionTaken is the error after takeSession.
var errSessionTaken = errors.New("its session is in use")

// close closes the connection. It may be called on nil, and twice.
func (n *localServer) close() {
	if n == nil {
		return
	}
	if <-n.answered; n.session != nil {
		_ = n.session.Close()
	}
	_ = n.transport.Close()
}

// localFlags are the flags that keep a run here: they concern this machine or this process, and a server does not grant them to clients
// (D12) or has its own setting.
var localFlags = []string{
	"dry-run", "backend", "runtime", "docker-host", "volume", "workspace", "workspace-cap", "workspace-inodes", "spill", "audit-log", "pull",
}

// localReasons are the reasons of localFlags in messages.
var localReasons = map[string]string{
	"dry-run":          "a server's plans are its own",
	"backend":          "which backend it uses is the server's to say",
	"runtime":          "which runtime it uses is the server's to say",
	"docker-host":      "which backend it uses is the server's to say",
	"volume":           "a server shows nothing of this machine",
	"workspace":        "workspaces are kept here",
	"workspace-cap":    "workspaces are kept here",
	"workspace-inodes": "workspaces are kept here",
	"spill":            "a server writes no files here",
	"audit-log":        "a server keeps its own log",
	"pull":             "a server gets no images for its clients",
}

// localFlag returns the flag that keeps a run here, and the reason. flag is empty if the run can take place at a server.
func localFlag(flags *pflag.FlagSet, auto bool) (flag, why string) {
	value := func(name string) string { return flags.Lookup(name).Value.String() }
	for _, name := range localFlags {
		if !flags.Changed(name) || name == "backend" && value(name) == app.Auto ||
			(name == "dry-run" || name == "pull") && value(name) == "false" { // the default is given
			continue
		}
		return name, localReasons[name]
	}
	// Another tier may need another backend, which only a run here can choose. A server does not grant less than the default.
	switch {
	case auto && value("require") != string(sandbox.TierContainer):
		return "require", "another tier may take another backend"
	case auto && value("writable-root") == "true":
		return "writable-root", "a server allows it only if its operator does"
	case auto && slices.ContainsFunc(networkFlags, func(name string) bool { return hasRules(flags, name) }):
		return "network", "a server has its own network, and its operator decides what a run reaches"
	case auto && value("strict") == "true":
		return "strict", "it may take another backend"
	}
	return "", ""
}

// networkFlags are the flags of networks with rules.
var networkFlags = []string{
	"network", "allow", "deny", "allow-registry", "allow-dns", "publish", "compile-network", "compile-allow", "compile-allow-registry",
}

// hasRules reports whether a flag of a network asks for more than a loopback.
func hasRules(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	if strings.HasSuffix(name, "network") {
		return network.Policy{Mode: network.Mode(f.Value.String())}.HasRules()
	}
	return f.Changed && f.Value.String() != "false"
}

// openTransport returns the transport to the server that --server names. The caller closes it.
func (o *serverOptions) openTransport(c *Invocation) (client.Transport, error) {
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
	if c.full == nil { // unreachable: handOverParsed has handed over
		return nil, &sandbox.Error{Op: "--server", Kind: sandbox.ErrUnsupported, Err: errors.New("this executable knows unix sockets only")}
	}
	return c.full.Web(o.server, key, o.ca)
}

// checkServerVersion refuses a server of another version: a request may have another meaning there.
func checkServerVersion(h client.Header, server string) error {
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

// plainSocketError reduces the error of a failed connect to its errno.
func plainSocketError(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		return fmt.Errorf("no server listens there: %w", call.Err)
	}
	return err
}
