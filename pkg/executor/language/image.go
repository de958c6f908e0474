package language

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Image is an image that sandboxes can have as their root until it is released.
type Image struct {
	sandbox.ImageInfo
	Dir string // where it is unpacked; empty if the backend has it in its own store
	// Release ends the lease, after all sandboxes on the image are deleted. A nil Release does nothing.
	Release func()
}

// Close releases the image. A nil image is valid.
func (i *Image) Close() {
	if i != nil && i.Release != nil {
		i.Release()
	}
}

// Apply puts a sandbox on the image: its root, its harmless variables, and its working directory unless the spec has one.
// Settings of the spec take precedence. Apply returns notes on settings of the image that it left out.
func (i *Image) Apply(s *sandbox.Spec) (notes []string) {
	s.Root.Dir, s.Root.From = i.Dir, i.ImageRef
	if i.Dir == "" {
		s.Root.Image = i.Reference
	}
	env := imageEnv(i.Env)
	for k, v := range s.Env {
		env[k] = v
	}
	s.Env = env
	if s.Workdir == "" && i.Workdir != "" && path.Clean(i.Workdir) != "/" {
		if dir, why := i.workdir(); why == "" {
			s.Workdir = dir
		} else {
			notes = append(notes, fmt.Sprintf("the image's directory %s: %s; the working directory is %s", i.Workdir, why, sandbox.WorkspaceDir))
		}
	}
	return notes
}

// workdir returns the image's working directory, or why the sandbox's user can not use it.
func (i *Image) workdir() (dir, why string) {
	dir = path.Clean(i.Workdir)
	if !path.IsAbs(dir) {
		return "", "it is not an absolute path"
	}
	if i.Dir == "" {
		return dir, "" // the backend checks it
	}
	for _, own := range append(sandbox.ScratchDirs(), "/proc", "/dev", "/sys") {
		if dir == own {
			return dir, ""
		}
	}
	root, err := os.OpenRoot(i.Dir)
	if err != nil {
		return "", err.Error()
	}
	defer root.Close()
	for at := dir; at != "/"; at = path.Dir(at) {
		st, err := toolchain.StatIn(root, at)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return "", "it does not exist"
		case err != nil:
			return "", err.Error()
		case !st.IsDir():
			return "", "it is not a directory"
		case st.Mode()&0o001 == 0:
			return "", "it is closed to the sandbox's user"
		}
	}
	return dir, ""
}

// imageEnv returns the variables of an image that its sandboxes get. It leaves out the variables that the sandbox sets itself,
// and those that make the loader run code before the program.
func imageEnv(all []string) map[string]string {
	env := map[string]string{}
	for _, entry := range all {
		k, v, ok := strings.Cut(entry, "=")
		if !ok || k == "" || strings.ContainsRune(entry, 0) || len(entry) > maxImageVariable || len(env) == maxImageVariables {
			continue
		}
		if slices.Contains(withheld(), k) || slices.ContainsFunc([]string{"LD_", "SANDBOX_RUN_", "XDG_"}, func(stem string) bool {
			return strings.HasPrefix(k, stem) && k != "LD_LIBRARY_PATH"
		}) {
			continue
		}
		env[k] = v
	}
	return env
}

const (
	maxImageVariable  = 32 << 10
	maxImageVariables = 256
)

// withheld returns the variables that belong to the sandbox: its user, and the directories that the user may write to.
// GLIBC_TUNABLES controls the loader, as LD_… do.
func withheld() []string {
	return []string{"HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "HOSTNAME", "TERM", "TMPDIR", "TMP", "TEMP", "GLIBC_TUNABLES"}
}

// Command returns the command to run on the image, as Docker does: the arguments follow the image's entrypoint; without
// arguments, the image's command does. A given entrypoint replaces both; an empty one leaves the arguments alone.
func (i *Image) Command(entrypoint *string, args []string) ([]string, error) {
	first, rest := i.Entrypoint, args
	if entrypoint != nil {
		first = nil
		if *entrypoint != "" {
			first = []string{*entrypoint}
		}
	} else if len(args) == 0 {
		rest = i.Cmd
	}
	command := slices.Concat(first, rest)
	if len(command) == 0 {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "command", "sandbox-run exec --image "+i.Reference+" -- ls -la /",
			"none is given, and the image %s has none of its own", i.Reference)
	}
	return command, nil
}
