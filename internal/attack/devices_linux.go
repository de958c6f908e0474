package attack

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// devicesInVolumes: a volume may hold device files, and they must mean nothing inside.
func (t *trial) devicesInVolumes() {
	if os.Geteuid() != 0 {
		return // who is not root can make none, and has none to give
	}
	dir := t.dir()
	device := dir + "/zero"
	t.must(unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	t.must(os.Chmod(device, 0o666))
	control := t.outside("read", device).of(device)
	if !control.OK() {
		t.note("device files mean nothing in /var/tmp on this host")
		return
	}
	id := t.sandbox(func(s *sandbox.Spec) {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: "/devices"})
	})
	got := t.inside(id, "read", "/devices/zero").of("/devices/zero")
	t.judge(isShut(got.Got) && got.Got != "ENOENT", "open a device of a volume", got.Got, "host: "+control.Got)
}
