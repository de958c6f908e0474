package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// rootDir is a directory that can be a sandbox's whole root, with the host's programs shown in it.
func (t *trial) rootDir() (string, []sandbox.Volume) {
	root := t.dir()
	volumes := []sandbox.Volume{{Source: t.o.Executable, Target: attackerInside}, {Source: "/usr", Target: "/usr"}}
	for _, name := range []string{"bin", "lib", "lib64"} {
		st, err := os.Lstat("/" + name)
		switch {
		case err != nil:
		case st.Mode()&os.ModeSymlink != 0:
			link, err := os.Readlink("/" + name)
			t.must(err)
			t.must(os.Symlink(link, filepath.Join(root, name)))
		default:
			volumes = append(volumes, sandbox.Volume{Source: "/" + name, Target: "/" + name})
		}
	}
	return root, volumes
}

func symlinkedTargets(t *trial) {
	outside := t.dir()
	good := t.dir()
	err := t.refused(t.spec(func(s *sandbox.Spec) { s.Root.Dir = good }))
	t.control(err == nil, "a root without links", fmt.Sprint(err))
	for _, target := range []string{"/proc", "/dev", "/sys", "/tmp", "/workspace", "/home/sandbox", "/home", "/data"} {
		root := t.dir()
		t.must(os.MkdirAll(filepath.Dir(root+target), 0o755))
		t.must(os.Symlink(outside, root+target))
		err := t.refused(t.spec(func(s *sandbox.Spec) {
			s.Root.Dir = root
			if target == "/data" {
				s.Volumes = append(s.Volumes, sandbox.Volume{Source: outside, Target: "/data"})
			}
		}))
		t.judge(err != nil, "a root whose "+target+" is a link", fmt.Sprint(err), "without: ok")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.breach("something was made on the host, where the links lead: %s", left[0].Name())
	}
}

func swappedNull(t *trial) {
	root, volumes := t.rootDir()
	t.file(root+"/dev/null", "not the null device", 0o666)
	t.file(root+"/planted/null", "not the null device", 0o666)
	id := t.sandbox(func(s *sandbox.Spec) { s.Root.Dir, s.Volumes = root, volumes })
	for _, box := range []struct{ name, id string }{{"in a root with another", id}, {"in a plain sandbox", t.sandbox()}} {
		said := t.inside(box.id, "stat", "/dev/null", "/dev/zero", "/dev/urandom", "/planted/null")
		planted := said.of("/planted/null")
		if box.id == id {
			t.control(planted.OK() && strings.Contains(planted.Detail, "device 0:0"), "the planted file is there, at another place", say(planted))
		}
		for p, device := range map[string]string{"/dev/null": "1:3", "/dev/zero": "1:5", "/dev/urandom": "1:9"} {
			a := said.of(p)
			t.judge(a.OK() && strings.HasPrefix(a.Detail, "mode 20") && strings.Contains(a.Detail, "device "+device+" "), p+" "+box.name, a.Detail,
				planted.Detail)
		}
		// A mask is that device, or an empty unreadable file.
		for _, a := range t.inside(box.id, "read", "/proc/kcore", "/proc/keys", "/proc/kallsyms", "/proc/timer_list") {
			t.judge(isShut(a.Got) || a.OK() && a.Detail == "", "what covers "+a.Name+" "+box.name, say(a), "")
		}
	}
}

const procMagic = "magic 9fa0"

func fakeProc(t *trial) {
	root, volumes := t.rootDir()
	for _, p := range []string{"/proc/", "/planted/"} {
		t.file(root+p+"version", "a fake", 0o666)
		t.file(root+p+"sys/kernel/hostname", "a fake", 0o666)
		t.file(root+p+"self/attr/exec", "a fake", 0o666)
	}
	id := t.sandbox(func(s *sandbox.Spec) { s.Root.Dir, s.Volumes = root, volumes })
	planted := t.inside(id, "read", "/planted/version").of("/planted/version")
	t.control(planted.Detail == "a fake", "the fake is there, at another place", say(planted))
	for _, box := range []struct{ name, id string }{{"in a root with another", id}, {"in a plain sandbox", t.sandbox()}} {
		for _, a := range t.inside(box.id, "stat", "/proc", "/proc/sys", "/proc/self") {
			t.judge(strings.HasSuffix(a.Detail, procMagic), a.Name+" is a procfs "+box.name, a.Detail, "")
		}
		for _, a := range t.inside(box.id, "read", "/proc/version", "/proc/sys/kernel/hostname", "/proc/self/attr/exec") {
			t.judge(a.Detail != "a fake", a.Name+" "+box.name, say(a), planted.Detail)
		}
	}
}

func racingRenames(t *trial) {
	dir := t.dir()
	for _, d := range []string{"theirs", "ours"} {
		t.file(dir+"/"+d+"/x/secret", d, 0o644)
	}
	path, link := dir+"/theirs", dir+"/link"
	t.must(os.Symlink(dir+"/ours", link))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	t.later(func() { close(stop); <-stopped })
	fooled := false
	for end := time.Now().Add(8 * time.Second); !fooled && time.Now().Before(end); {
		text, _ := os.ReadFile(path + "/x/secret")
		fooled = string(text) == "ours"
	}
	t.control(fooled, "a careless reader is led astray", fmt.Sprint(fooled))
	opened, wrong := 0, 0
	for n := 0; n < 12 || opened == 0 && n < 100; n++ {
		id, err := t.manager.Create(t.ctx, t.spec(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: path + "/x", Target: "/data"})
		}))
		if err != nil {
			if t.ctx.Err() != nil {
				break
			}
			continue // a link on the path
		}
		opened++
		if t.inside(id, "read", "/data/secret").of("/data/secret").Detail == "ours" {
			wrong++
		}
		t.delete(id)
	}
	t.control(opened > 0, "the volume was opened between renames", fmt.Sprint(opened))
	t.judge(wrong == 0, "a volume whose source is swapped for a link", fmt.Sprintf("led astray %d of %d times", wrong, opened),
		"a careless reader: led astray")

	// Inside: a directory on the path of a volume's target is swapped while the next phase is mounted.
	id := t.sandbox(func(s *sandbox.Spec) {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir + "/ours", Target: "/workspace/deep/volume"})
	})
	seen := t.inside(id, "read", "/workspace/deep/volume/x/secret").of("/workspace/deep/volume/x/secret")
	t.control(seen.Detail == "ours", "the volume is there without a race", say(seen))
	t.must(t.sh(id, "mkdir -p /tmp/elsewhere && ln -s /tmp/elsewhere /workspace/link"))
	racing := make(chan answers, 1)
	go func() {
		var a answers
		t.guard(func() {
			p := t.process("swap", "/workspace/deep", "/workspace/link", "800ms")
			p.Phase = "race"
			a = hostile.Parse(t.run(id, p, sandbox.IO{}).Stdout.Bytes())
		})
		racing <- a
	}()
	strayed, phases := 0, 0
	var swapped answers
	for swapped == nil {
		select {
		case swapped = <-racing:
			if swapped == nil {
				swapped = answers{}
			}
		default:
			p := t.process("read", "/tmp/elsewhere/volume")
			p.Phase = fmt.Sprintf("p%d", phases)
			phases++
			res, err := t.manager.Run(t.ctx, id, p, sandbox.IO{})
			if err == nil && answers(hostile.Parse(res.Stdout.Bytes())).of("/tmp/elsewhere/volume").OK() {
				strayed++
			}
		}
	}
	t.control(swapped.number("swapped") > 0, "the way to the target was swapped", fmt.Sprint(swapped.number("swapped")))
	t.judge(strayed == 0, "a volume whose target is swapped for a link", fmt.Sprintf("mounted elsewhere in %d of %d phases", strayed, phases),
		"")
}

// sh runs a shell script in a sandbox.
func (t *trial) sh(id, script string) error {
	res := t.run(id, sandbox.Process{Args: []string{"/bin/sh", "-c", script}}, sandbox.IO{})
	if !res.Success() {
		return fmt.Errorf("%s: %s: %.200q", script, res.Verdict, res.Stderr.Bytes())
	}
	return nil
}
