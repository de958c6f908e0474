package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// recipes install Docker from a distribution's own packages, by the names in os-release.
var recipes = []struct {
	names   []string
	install [][]string
}{
	{[]string{"debian", "ubuntu"}, [][]string{{"apt-get", "update"}, {"apt-get", "install", "-y", "docker.io"}}},
	{[]string{"fedora"}, [][]string{{"dnf", "install", "-y", "moby-engine"}}},
	{[]string{"rhel", "centos"}, [][]string{{"dnf", "install", "-y", "podman-docker"}}},
	{[]string{"arch"}, [][]string{{"pacman", "-S", "--noconfirm", "docker"}}},
	{[]string{"alpine"}, [][]string{{"apk", "add", "docker"}}},
	{[]string{"opensuse", "suse"}, [][]string{{"zypper", "--non-interactive", "install", "docker"}}},
}

// Machine is what Setup has to know of a machine.
type Machine struct {
	OS        string // runtime.GOOS
	Release   string // the text of /etc/os-release
	Systemd   bool
	OpenRC    bool
	Root      bool
	User      string
	Installed bool // dockerd is installed
}

// ThisMachine inspects this machine.
func ThisMachine() Machine {
	text, _ := os.ReadFile("/etc/os-release")
	is := func(path string) bool { _, err := os.Stat(path); return err == nil }
	_, err := exec.LookPath("dockerd")
	return Machine{
		OS: runtime.GOOS, Release: string(text), Systemd: is("/run/systemd/system"), OpenRC: is("/sbin/openrc-run"), Root: os.Geteuid() == 0,
		User: os.Getenv("USER"), Installed: err == nil || is("/usr/sbin/dockerd"),
	}
}

// Commands are the commands that install and start Docker, in order.
func (m Machine) Commands() ([][]string, error) {
	if m.OS != "linux" {
		return nil, &sandbox.Error{Backend: Name, Op: "setup", Kind: sandbox.ErrUnsupported,
			Err: fmt.Errorf("%s has no packages of Docker itself",
				m.OS), Hint: "install Docker Desktop, Colima, Rancher Desktop or Podman, and start it"}
	}
	var list [][]string
	if !m.Installed {
		names := m.names()
		for _, r := range recipes {
			for _, name := range r.names {
				if list == nil && strings.Contains(names, " "+name+" ") {
					list = append(list, r.install...)
				}
			}
		}
		if list == nil {
			return nil, &sandbox.Error{Backend: Name, Op: "setup", Kind: sandbox.ErrUnsupported,
				Err: fmt.Errorf("no recipe for this distribution (%s)",
					strings.TrimSpace(names)), Hint: "install Docker or Podman with its package manager, and start it"}
		}
	}
	switch {
	case m.Systemd:
		list = append(list, []string{"systemctl", "enable", "--now", "docker"})
	case m.OpenRC:
		list = append(list, []string{"rc-update", "add", "docker"}, []string{"service", "docker", "start"})
	default:
		list = append(list, []string{"service", "docker", "start"})
	}
	if !m.Root {
		if m.User != "" {
			list = append(list, []string{"usermod", "-aG", "docker", m.User})
		}
		for i := range list {
			list[i] = append([]string{"sudo"}, list[i]...)
		}
	}
	return list, nil
}

// names are the distribution's ID and ID_LIKE.
func (m Machine) names() string {
	all := " "
	for line := range strings.SplitSeq(m.Release, "\n") {
		for _, key := range []string{"ID=", "ID_LIKE="} {
			if value, ok := strings.CutPrefix(line, key); ok {
				all += strings.Trim(value, `"'`) + " "
			}
		}
	}
	return all
}

// ErrDeclined says that the user declined.
var ErrDeclined = errors.New("nothing was done")

// Setup shows the commands, asks on in and out, and runs them. With yes it does not ask.
func Setup(ctx context.Context, m Machine, yes bool, in io.Reader, out io.Writer) error {
	commands, err := m.Commands()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "This installs and starts Docker from the distribution's packages:")
	for _, c := range commands {
		fmt.Fprintln(out, "  "+strings.Join(c, " "))
	}
	if !yes {
		fmt.Fprint(out, "Go on? [y/N] ")
		answer, _ := bufio.NewReader(io.LimitReader(in, 64)).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return ErrDeclined
		}
	}
	for _, c := range commands {
		cmd := exec.CommandContext(ctx, c[0], c[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.Stdin = out, out, in
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := cmd.Run(); err != nil {
			return &sandbox.Error{Backend: Name, Op: "setup: " + strings.Join(c, " "), Err: err, Hint: "run it by hand and read what it says"}
		}
	}
	return nil
}
