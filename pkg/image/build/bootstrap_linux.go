package build

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// tools are the programs that a build needs.
type tools struct {
	mmdebstrap, aptGet, aptConfig, unshare string
	root                                   bool
}

func findTools() (*tools, error) {
	t := &tools{root: os.Geteuid() == 0}
	for _, need := range []struct {
		to          *string
		name, owner string
	}{
		{&t.mmdebstrap, "mmdebstrap", "mmdebstrap"},
		{&t.aptGet, "apt-get", "apt"},
		{&t.aptConfig, "apt-config", "apt"},
		{&t.unshare, "unshare", "util-linux"},
	} {
		path, err := exec.LookPath(need.name)
		if err != nil {
			hint := "apt-get install " + need.owner + ", or build with Docker: sandbox-run image dockerfile NAME"
			return nil, sandbox.Errorf(sandbox.ErrUnsupported, "image build", hint, "%s is not installed: %w", need.name, exec.ErrNotFound)
		}
		*need.to = path
	}
	if !t.root {
		if _, err := exec.LookPath("newuidmap"); err != nil {
			return nil, sandbox.Errorf(sandbox.ErrUnsupported, "image build", "apt-get install uidmap, or build as root",
				"newuidmap is not installed: %w; without it only root can build", exec.ErrNotFound)
		}
	}
	return t, nil
}

// namespaces begins a command that is root of namespaces of its own, which end with it: all its processes die, all its mounts go.
func (t *tools) namespaces() []string {
	args := []string{t.unshare}
	if !t.root {
		args = append(args, "--user", "--map-root-user", "--map-auto")
	}
	return append(args, "--fork", "--pid", "--mount-proc", "--kill-child=KILL", "--")
}

// preferences are for apt: Debian's packages alone, and of the two packages that say that /usr is merged the one that needs no Perl.
const preferences = `Package: usrmerge
Pin: release *
Pin-Priority: -1

Package: *
Pin: release o=Debian
Pin-Priority: 500

Package: *
Pin: release *
Pin-Priority: -1
`

// command is mmdebstrap with all its arguments. The archive goes to its standard output, the sources come from its input.
func (w *work) command(d *Definition, s *sources) []string {
	args := append(w.tools.namespaces(), w.tools.mmdebstrap,
		"--mode=root", "--variant=essential", "--format=tar", "--verbose",
		"--include="+strings.Join(d.Debian, ","),
		// Packages stay where the next build finds them; devices are not wanted.
		"--skip=download/empty,essential/unlink,output/dev",
		`--aptopt=Acquire::Languages "none"`,
		`--aptopt=Acquire::Retries "3"`,
		`--aptopt=Acquire::http::Timeout "30"`,
		`--aptopt=Acquire::https::Timeout "30"`,
		`--aptopt=APT::Install-Recommends "false"`,
	)
	if !w.tools.root {
		// The user that apt downloads as can not reach into a home directory.
		args = append(args, `--aptopt=APT::Sandbox::User "root"`)
	}
	for _, c := range s.conf {
		args = append(args, "--aptopt="+c)
	}
	for _, e := range d.dpkgOptions() {
		args = append(args, "--dpkgopt="+e)
	}
	for _, script := range []string{
		// A merged /usr from the start.
		`for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d" || exit; done`,
		`mkdir -p "$1` + manualPages + `" "$1/etc/apt/preferences.d" "$1/var/cache/apt/archives"`,
		`cp ` + quote(w.path("preferences")) + ` "$1/etc/apt/preferences.d/sandbox-run"`,
		`mount --bind ` + quote(w.path("archives")) + ` "$1/var/cache/apt/archives"`,
	} {
		args = append(args, "--setup-hook="+script)
	}
	// Whether the packages are to be had is asked before anything is installed: the answer takes a second then, and a minute later.
	args = append(args, `--extract-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --quiet --yes --simulate install `+
		strings.Join(d.Debian, " ")+` >/dev/null`)
	for _, pattern := range d.Remove { // a pattern is of a form that needs no quoting
		args = append(args, `--customize-hook=cd "$1" && rm -rf .`+pattern)
	}
	return append(args, `--customize-hook=umount "$1/var/cache/apt/archives"`, s.suite, "-", "-")
}

// quote makes a word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// bootstrap has the packages installed below a directory, and what is then there written to root as an archive.
func (w *work) bootstrap(ctx context.Context, d *Definition, s *sources, root *os.File, said *tail, o Options) error {
	if err := os.WriteFile(w.path("preferences"), []byte(preferences), 0o644); err != nil {
		return err
	}
	args := w.command(d, s)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(strings.Join(s.lines, "\n") + "\n")
	cmd.Stdout = root
	steps := &steps{report: o.progress}
	cmd.Stderr = io.MultiWriter(said, steps)
	if o.Log != nil {
		cmd.Stderr = io.MultiWriter(said, steps, o.Log)
	}
	cmd.Env = w.environ()
	cmd.ExtraFiles = []*os.File{w.lock}
	cmd.WaitDelay = 10 * time.Second
	// A process group of its own: Ctrl-C is for us to handle. Pdeathsig: with us gone, so is everything.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done := make(chan error, 1)
	go func() {
		// Pdeathsig is about the thread that started the child, so that one has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	err := <-done
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &failure{args[0], err}
	}
	return err
}

// failure is that mmdebstrap, or what it ran, said no. explain says why.
type failure struct {
	program string
	err     error
}

func (f *failure) Error() string { return f.program + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// environ is what the programs of a build see. Nothing of it gets into the image. SOURCE_DATE_EPOCH is not in it: Python would compile its
// library so that every import hashes the source anew. Times are normalised when the layer is written.
func (w *work) environ() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC", "TERM=dumb",
		"DEBIAN_FRONTEND=noninteractive", "DEBCONF_NONINTERACTIVE_SEEN=true", "TMPDIR=" + w.path("tmp"),
	}
	for _, name := range []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"} {
		for _, key := range []string{name, strings.ToUpper(name)} {
			if v, ok := os.LookupEnv(key); ok {
				env = append(env, key+"="+v)
			}
		}
	}
	return env
}

// stages are the first words of what mmdebstrap itself says that is of interest.
var stages = []string{"running", "downloading", "extracting", "installing", "cleaning", "creating"}

// steps finds in what apt and dpkg say what is being done.
type steps struct {
	report func(string)
	rest   []byte
}

func (s *steps) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, after, ok := bytes.Cut(s.rest, []byte("\n"))
		if !ok {
			break
		}
		s.rest = after
		fields := strings.Fields(string(line))
		switch {
		case len(fields) >= 5 && strings.HasPrefix(fields[0], "Get:") && fields[4][0] != '[':
			s.report("downloading " + fields[4])
		case len(fields) >= 2 && fields[0] == "Unpacking":
			s.report("unpacking " + fields[1])
		case len(fields) >= 3 && fields[0] == "Setting" && fields[1] == "up":
			s.report("setting up " + fields[2])
		case len(fields) >= 3 && fields[0] == "I:" && slices.Contains(stages, fields[1]) && !strings.HasPrefix(fields[2], "--"):
			s.report(strings.TrimSuffix(strings.Join(fields[1:], " "), "..."))
		}
	}
	if len(s.rest) > maxTail {
		s.rest = nil
	}
	return len(p), nil
}
