package attack

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// devicesInVolumes: a volume may contain device files, and they must not work inside.
func (t *trial) devicesInVolumes() {
	if os.Geteuid() != 0 {
		return // without root no device can be made
	}
	dir := t.dir()
	device := dir + "/zero"
	t.must(unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	t.must(os.Chmod(device, 0o666))
	control := t.outside("read", device).of(device)
	if !control.OK() {
		t.note("device files do not work in /var/tmp on this host")
		return
	}
	id := t.sandbox(func(s *sandbox.Spec) {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: "/devices"})
	})
	got := t.inside(id, "read", "/devices/zero").of("/devices/zero")
	t.judge(isShut(got.Got) && got.Got != "ENOENT", "open a device of a volume", got.Got, "host: "+control.Got)
}
