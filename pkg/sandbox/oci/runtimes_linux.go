package oci

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// kind is what there is to know of a runtime. All that runtimes differ in is here.
type kind struct {
	name string
	file string // what its executable is called
	tier sandbox.Tier
	// global are options before the command, run those after it.
	global, run []string
	// env are further variables of the runtime's own.
	env []string
	// stdin: the init's socket is its standard input. Others hand on descriptor 3.
	stdin bool
	// early: it can be started before its bundle is made, waits for its config, and needs nothing of it once the init runs.
	early bool
	// whole: the runtime itself, and the kernel it brings along, run in the cgroup that limits the program. With others the init
	// stays outside, and the program joins.
	whole bool
	// kernel: it brings one along. Walls of the host's kernel are then not the program's.
	kernel bool
	// relays: its kernel hands out no end of a terminal, and takes one from the runtime's exec only.
	relays bool
	// devices: it makes /dev itself.
	devices bool
	// unified: of machines that have v1 hierarchies it refuses some (those with a v2 tree besides), and puts containers at the
	// root of each on the others, where no limit of ours would hold.
	unified bool
	oldest  version // that will do
	get     string  // how to get it
	// rooted says why an ordinary user can not have it.
	rooted string
	// unfit says why it can not be driven at all.
	unfit string
}

// notSeen: what it does there is not known.
const notSeen = "this backend has not been tried with it in a user namespace"

// runtimes that are known, in the order in which they are looked for.
var runtimes = []kind{
	{
		name: "runc", file: "runc", tier: sandbox.TierContainer, run: []string{"--preserve-fds", "1"}, early: true,
		// It does one thing after the other, and little of that before it only waits.
		env:    []string{"GOMAXPROCS=1", "GOGC=800"},
		oldest: version{1, 1}, get: "apt-get install runc",
	},
	{name: "crun", file: "crun", tier: sandbox.TierContainer, run: []string{"--preserve-fds", "1"}, unified: true, rooted: notSeen, oldest: version{1, 0}, get: "apt-get install crun"},
	{name: "youki", file: "youki", tier: sandbox.TierContainer, run: []string{"--preserve-fds", "1"}, unified: true, rooted: notSeen, oldest: version{0, 3}, get: "a release of https://github.com/youki-dev/youki on PATH"},
	{
		name: "runsc", file: "runsc", tier: sandbox.TierGVisor, stdin: true, whole: true, kernel: true, relays: true, devices: true,
		// Its network is a loopback and nothing else; the namespace that it is given is empty in any case. Its cgroup is the one
		// that it is started in.
		global: []string{"--network", "none", "--ignore-cgroups", "--overlay2", "none"},
		oldest: version{20221219}, get: "apt-get install runsc",
	},
	{
		name: "kata", file: "kata-runtime", tier: sandbox.TierMicroVM,
		unfit: "from version 2 on Kata Containers has no OCI command line, and is driven by containerd only",
		get:   "--backend docker --runtime io.containerd.kata.v2, with Kata Containers and a daemon that knows it",
	},
}

// Runtimes lists the names that --runtime knows.
func Runtimes() (names []string) {
	for _, k := range runtimes {
		names = append(names, k.name)
	}
	return names
}

// found is a runtime of this machine, or why there is none.
type found struct {
	*kind
	path    string
	version string
	reason  string // why it can not be used
	remedy  string
}

func byName(name string) *kind {
	if i := slices.IndexFunc(runtimes, func(k kind) bool { return k.name == name || k.file == name }); i >= 0 {
		return &runtimes[i]
	}
	return nil
}

// find looks a runtime up: by name, by path, or the first one that there is. An error is the caller's fault; what the machine
// lacks is a reason.
func find(asked string) (*found, error) {
	if asked == "" {
		for i := range runtimes {
			if path, err := exec.LookPath(runtimes[i].file); err == nil && runtimes[i].unfit == "" {
				return &found{kind: &runtimes[i], path: path}, nil
			}
		}
		return &found{kind: &runtimes[0], reason: "no OCI runtime is on PATH", remedy: runtimes[0].get}, nil
	}
	k, path := byName(asked), asked
	if strings.Contains(asked, "/") {
		if !filepath.IsAbs(asked) {
			return nil, sandbox.Invalid("runtime", "path %q must be absolute", asked)
		}
		real, err := filepath.EvalSymlinks(asked) //nolint:forbidigo // a program of the user's own choice
		if err == nil {
			_, err = exec.LookPath(real)
		}
		if err != nil {
			return nil, sandbox.Invalid("runtime", "%w", err)
		}
		// By the name it was given, then by what that leads to.
		for _, p := range []string{asked, real} {
			if k == nil {
				k = byName(filepath.Base(p))
			}
		}
		if k == nil {
			return nil, sandbox.Invalid("runtime", "%q is none that is known; its file must be called like one of %s", asked, strings.Join(Runtimes(), ", "))
		}
		path = real
	}
	if k == nil {
		return nil, sandbox.Invalid("runtime", "unknown runtime %q; one of %s, or the path of one", asked, strings.Join(Runtimes(), ", "))
	}
	f := &found{kind: k, path: path}
	if k.unfit != "" {
		f.reason, f.remedy = k.unfit, k.get
		return f, nil
	}
	if !strings.Contains(asked, "/") {
		var err error
		if f.path, err = exec.LookPath(k.file); err != nil {
			f.path, f.reason, f.remedy = "", fmt.Sprintf("%s is not on PATH", k.file), k.get
			if errors.Is(err, exec.ErrDot) {
				f.reason = fmt.Sprintf("%s is found in the current directory only, which is not trusted", k.file)
			}
		}
	}
	return f, nil
}
