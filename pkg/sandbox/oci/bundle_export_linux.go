package oci

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// Export writes a bundle to an empty directory, for a comparison of the costs: runc can run it by hand, with a sandbox's
// namespaces, ids, mounts, masks and filter, and with a program in place of the init. Here the runtime makes the mounts
// that the mount helper makes early, and the scratch is plain directories.
func Export(dir string, args []string) error {
	spec := &sandbox.Spec{Hostname: sandbox.UserName, User: sandbox.DefaultUser, Limits: sandbox.DefaultLimits()}
	filter, err := newFilter(seccomp.Policy{})
	if err != nil {
		return err
	}
	const owner = supervisor.FirstID + 1
	b := &bundlePlan{
		kind: byName("runc"), spec: spec, init: rootInit(spec.User, supervisor.FirstID, owner), dir: dir, scratch: dir,
		masks: rootfs.FindMasks(), filter: filter,
	}
	parts := map[string]string{}
	for _, p := range files.Parts {
		at := filepath.Join(dir, p.Name)
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := os.Chown(at, owner, owner); err != nil { //nolint:forbidigo // made a line ago, in a private directory
			return err
		}
		parts[p.Name] = at
	}
	text, err := b.render(&bundleParts{Parts: parts})
	if err != nil {
		return err
	}
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	c.Process.Args, c.Process.Env, c.Process.Cwd = args, []string{"PATH=/usr/bin:/bin", "HOME=" + sandbox.HomeDir}, sandbox.WorkspaceDir
	for i := range c.Mounts {
		if c.Mounts[i].Destination == "/dev" {
			c.Mounts[i] = mount{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "noexec", "mode=755"}}
		}
	}
	root := filepath.Join(dir, rootfsDir)
	places := []string{"/proc", "/dev", "/sys", "/etc", sandbox.WorkspaceDir, sandbox.TmpDir, sandbox.HomeDir}
	for _, p := range sandbox.HostDirs() {
		st, err := os.Lstat(p)
		switch {
		case err != nil:
		case st.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err == nil {
				err = os.MkdirAll(root, 0o755)
			}
			if err == nil {
				err = os.Symlink(target, filepath.Join(root, p))
			}
			if err != nil {
				return err
			}
		default:
			places = append(places, p)
			c.Mounts = append(c.Mounts, mount{p, "bind", p, []string{"rbind", "ro", "nosuid", "nodev"}})
		}
	}
	for _, p := range places {
		if err := os.MkdirAll(filepath.Join(root, p), 0o755); err != nil {
			return err
		}
	}
	if text, err = json.Marshal(c); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}
