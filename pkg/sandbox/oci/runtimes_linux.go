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

// kind describes a runtime. All differences between runtimes are here.
type kind struct {
	name string
	file string // name of its executable
	tier sandbox.Tier
	// global are the options before the command, run those after it.
	global, run []string
	// env are additional variables of the runtime.
	env []string
	// stdin: the init's socket is the runtime's standard input. Other runtimes pass on descriptor 3.
	stdin bool
	// early: the runtime can start before its bundle is made, waits for its config, and does not need the bundle once
	// the init runs.
	early bool
	// whole: the runtime and its kernel run in the cgroup that limits the program. With other runtimes the init stays
	// outside, and the program joins.
	whole bool
	// kernel: the runtime has a kernel of its own. Controls of the host's kernel then do not apply to the program
	// directly.
	kernel bool
	// relays: its kernel passes out no end of a terminal, and takes one only from the runtime's exec.
	relays bool
	// devices: the runtime makes /dev itself.
	devices bool
	// unified: the runtime needs v2. Of machines with v1 hierarchies it refuses some (those that also have a v2 tree),
	// and on the others it puts containers at the root of each hierarchy, outside the supervisor's limits.
	unified bool
	oldest  version // that works
	get     string  // how to get it
	// rooted is the reason why an ordinary user can not use it.
	rooted string
	// unfit is the reason why this backend can not use it at all.
	unfit string
}

// notSeen: its behaviour there is not known.
const notSeen = "this backend has not been tried with it in a user namespace"

// runtimes are the known runtimes, in the order of the search.
var runtimes = []kind{
	{
		name: "runc", file: "runc", tier: sandbox.TierContainer, run: []string{"--preserve-fds", "1"}, early: true,
		// runc works sequentially, and has little to do before it only waits.
		env:    []string{"GOMAXPROCS=1", "GOGC=800"},
		oldest: version{1, 1}, get: "apt-get install runc",
	},
	{name: "crun", file: "crun", tier: sandbox.TierContainer, run: []string{"--preserve-fds", "1"}, unified: true, rooted: notSeen,
		oldest: version{1, 0}, get: "apt-get install crun"},
	{name: "youki", file: "youki", tier: sandbox.TierContainer, run: []string{"--preserve-fds", "1"}, unified: true, rooted: notSeen,
		oldest: version{0, 3}, get: "a release of https://github.com/youki-dev/youki on PATH"},
	{
		name: "runsc", file: "runsc", tier: sandbox.TierGVisor, stdin: true, whole: true, kernel: true, relays: true, devices: true,
		// Its network is a loopback and nothing else; the namespace that it gets is empty in any case. It stays in the
		// cgroup that it is started in.
		global: []string{"--network", "none", "--ignore-cgroups", "--overlay2", "none"},
		oldest: version{20221219}, get: "apt-get install runsc",
	},
	{
		name: "kata", file: "kata-runtime", tier: sandbox.TierMicroVM,
		unfit: "from version 2 on Kata Containers has no OCI command line, and is driven by containerd only",
		get:   "--backend docker --runtime io.containerd.kata.v2, with Kata Containers and a daemon that knows it",
	},
}

// Runtimes lists the names that --runtime accepts.
func Runtimes() (names []string) {
	for _, k := range runtimes {
		names = append(names, k.name)
	}
	return names
}

// found is a runtime of this machine, or the reason why there is none.
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

// find looks a runtime up: by name, by path, or the first on this machine. An error is for an invalid request; a missing
// runtime is a reason.
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
		// By the given name, then by the name of the link's target.
		for _, p := range []string{asked, real} {
			if k == nil {
				k = byName(filepath.Base(p))
			}
		}
		if k == nil {
			return nil, sandbox.Invalid("runtime", "%q is none that is known; its file must be called like one of %s", asked,
				strings.Join(Runtimes(), ", "))
		}
		path = real
	}
	if k == nil {
		return nil, sandbox.Invalid("runtime", "unknown runtime %q; use one of %s, or the path of one", asked, strings.Join(Runtimes(), ", "))
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
