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

// namespaces returns the prefix of a command that runs as root of new pid and mount namespaces. The kernel kills its processes and
// removes its mounts when the command ends.
func (t *tools) namespaces() []string {
	args := []string{t.unshare}
	if !t.root {
		args = append(args, "--user", "--map-root-user", "--map-auto")
	}
	return append(args, "--fork", "--pid", "--mount-proc", "--kill-child=KILL", "--")
}

// preferences restrict apt to Debian's packages. They exclude usrmerge, which depends on Perl; usr-is-merged satisfies the same
// dependency.
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

// command returns mmdebstrap with its arguments. mmdebstrap reads sources.list from its standard input and writes the archive to its
// standard output.
func (w *work) command(d *Definition, s *sources) []string {
	args := append(w.tools.namespaces(), w.tools.mmdebstrap,
		"--mode=root", "--variant=essential", "--format=tar", "--verbose",
		"--include="+strings.Join(d.Debian, ","),
		// Keep the downloaded packages for the next build. Write no device nodes: a sandbox makes its own.
		"--skip=download/empty,essential/unlink,output/dev",
		`--aptopt=Acquire::Languages "none"`,
		`--aptopt=Acquire::Retries "3"`,
		`--aptopt=Acquire::http::Timeout "30"`,
		`--aptopt=Acquire::https::Timeout "30"`,
		`--aptopt=APT::Install-Recommends "false"`,
	)
	if !w.tools.root {
		// The user _apt, which downloads by default, has no access to a home directory.
		args = append(args, `--aptopt=APT::Sandbox::User "root"`)
	}
	for _, c := range s.conf {
		args = append(args, "--aptopt="+c)
	}
	for _, e := range d.dpkgOptions() {
		args = append(args, "--dpkgopt="+e)
	}
	for _, script := range []string{
		// Merge /usr before the first package is unpacked: usrmerge is excluded.
		`for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d" || exit; done`,
		`mkdir -p "$1` + manualPages + `" "$1/etc/apt/preferences.d" "$1/var/cache/apt/archives"`,
		`cp ` + quote(w.path("preferences")) + ` "$1/etc/apt/preferences.d/sandbox-run"`,
		`mount --bind ` + quote(w.path("archives")) + ` "$1/var/cache/apt/archives"`,
	} {
		args = append(args, "--setup-hook="+script)
	}
	// Simulate the installation first: a missing package fails within a second instead of after a minute.
	args = append(args, `--extract-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --quiet --yes --simulate install `+
		strings.Join(d.Debian, " ")+` >/dev/null`)
	for _, pattern := range d.Remove { // the regular expression of a pattern allows no character that needs quoting
		args = append(args, `--customize-hook=cd "$1" && rm -rf .`+pattern)
	}
	return append(args, `--customize-hook=umount "$1/var/cache/apt/archives"`, s.suite, "-", "-")
}

// quote returns s as one word of a shell command.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// bootstrap runs mmdebstrap, which installs the packages and writes the result to root as an archive.
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
	// Setpgid: Ctrl-C reaches this process only, which cancels ctx. Pdeathsig: the build ends if this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done := make(chan error, 1)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the child ends.
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

// failure is an exit status of mmdebstrap other than 0. explain adds the reason.
type failure struct {
	program string
	err     error
}

func (f *failure) Error() string { return f.program + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// environ returns the environment of the build's programs. The image contains none of it. SOURCE_DATE_EPOCH is left out: with it Python
// compiles its library so that every import hashes the source. writeLayer normalises times.
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

// stages are the first words of those messages of mmdebstrap that are reported as progress.
var stages = []string{"running", "downloading", "extracting", "installing", "cleaning", "creating"}

// steps reports progress from the output of mmdebstrap, apt and dpkg.
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
