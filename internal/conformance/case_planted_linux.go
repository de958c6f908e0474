package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// outsider is a file of the host that a program would like to have read, or written.
func (e *env) outsider() (dir, file string) {
	dir = e.dir()
	file = filepath.Join(dir, "secret")
	write(e, file, "the host's secret")
	return dir, file
}

// untouched fails if a directory has another content than its secret.
func (e *env) untouched(dir string) {
	e.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || string(readFile(filepath.Join(dir, "secret"))) != "the host's secret" {
		e.Errorf("%s was written to: %v, %v", dir, entries, err)
	}
}

var plantedRows = []row{
	{"files out past what was planted", []Expectation{Files, Programs, Kernel}, false, func(e *env) { // F7
		dir, secret := e.outsider()
		id := e.create()
		// Of what there is inside, too: there the same path is the sandbox's own.
		e.ok(e.in(id, e.sh(`set -e
			echo plain > plain; mkdir dir; echo deep > dir/deep
			ln -s `+secret+` link; ln -s `+dir+` linked; ln -s plain inner; ln -s /nowhere dangling; ln -s . loop; ln -s /proc/self/root/etc magic
			mkfifo fifo; mkdir shut; echo shut > shut/file; chmod 000 shut/file; chmod 000 shut
			ln plain twin`)...))
		e.says(e.in(id, e.probe("bind", "socket")...), "ok")
		var got taken
		e.within(20*time.Second, "taking", func() { got = e.takeAll(id, "/workspace") })
		want := []string{"/workspace/dir/deep", "/workspace/plain", "/workspace/shut/file", "/workspace/twin"}
		links := 6
		if !e.has(Isolated) { // another name may be that of a file of the host
			want = []string{"/workspace/dir/deep", "/workspace/shut/file"}
			for _, name := range []string{"plain", "twin"} {
				if !strings.Contains(got.untaken["/workspace/"+name], "more than one name") {
					e.Errorf("%s: %v", name, got.untaken)
				}
			}
			links += 2
		}
		if !slices.Equal(got.order, want) || got.files["/workspace/dir/deep"] != "deep\n" || got.files["/workspace/shut/file"] != "shut\n" {
			e.Errorf("%q, not %q; untaken %v", got.order, want, got.untaken)
		}
		for name, reason := range map[string]string{"link": "symbolic link", "linked": "symbolic link", "inner": "symbolic link",
			"loop": "symbolic link", "magic": "symbolic link", "fifo": "FIFO", "socket": "socket"} {
			if !strings.Contains(got.untaken["/workspace/"+name], reason) {
				e.Errorf("%s: %q", name, got.untaken["/workspace/"+name])
			}
		}
		if len(got.untaken) != links+2 {
			e.Errorf("%v", got.untaken)
		}
		// By name, and through links.
		for _, p := range []string{"link", "linked/secret", "linked/**", "linked/*", "magic/passwd", "loop/dir/deep", "fifo", "socket",
			"*/secret"} {
			e.within(20*time.Second, "taking", func() { got = e.takeAll(id, "/workspace/"+p) })
			if len(got.files) > 0 || len(got.untaken) == 0 {
				e.Errorf("%s: %q, %v", p, got.files, got.untaken)
			}
		}
	}},
	{"files in past what was planted", []Expectation{Files, Programs}, false, func(e *env) { // F8
		dir, secret := e.outsider()
		id := e.create()
		e.ok(e.in(id, e.sh(`set -e
			echo original > original; ln original twin; mkdir elsewhere
			ln -s `+secret+` link; ln -s original inner; ln -s `+dir+` linked; ln -s elsewhere way
ln -s /nowhere/at/all dangling; mkfifo fifo; mkfifo asdir; mkdir dir`)...))
		e.says(e.in(id, e.probe("bind", "socket")...), "ok")
		// An entry of that name is replaced, whatever its kind, and nothing is written through it.
		for _, name := range []string{"link", "inner", "twin", "dangling", "fifo", "socket"} {
			e.within(20*time.Second, "putting", func() { e.put(id, text("/workspace/"+name, "put")) })
			e.says(e.in(id, e.probe("get", name)...), `ok "put"`)
			e.ok(e.in(id, e.sh("test -f "+name+" && ! test -L "+name)...))
		}
		e.says(e.in(id, e.probe("get", "original")...), `ok "original\n"`)
		// Entries on the path are not replaced.
		for _, p := range []string{"linked/new", "linked/secret", "linked/d/new", "way/new", "way/d/new"} {
			err := e.m.Put(e.Context(), id, []sandbox.File{text("/workspace/"+p, "put")})
			if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "symbolic link") || !strings.Contains(err.Error(), p) {
				e.Errorf("%s: %v", p, err)
			}
		}
		misplaced := []string{"dir", "original/new"}
		if e.has(Kernel) { // else a FIFO may be known to the sandbox's own kernel only, and there is nothing to be in the way
			misplaced = append(misplaced, "asdir/new")
		}
		for _, p := range misplaced {
			e.within(20*time.Second, "putting", func() {
				if err := e.m.Put(e.Context(), id, []sandbox.File{text("/workspace/"+p, "put")}); !errors.Is(err, sandbox.ErrInvalid) {
					e.Errorf("%s: %v", p, err)
				}
			})
		}
		// Both exist, and are empty: by the shell alone, because some kernels have not the calls of a newer ls.
		e.says(e.in(id, e.sh("test -d elsewhere && test -d dir && echo elsewhere/* elsewhere/.[!.]* dir/* dir/.[!.]*")...),
			"elsewhere/* elsewhere/.[!.]* dir/* dir/.[!.]*")
		e.untouched(dir)
		e.put(id, text("/workspace/dir/new", "put")) // it is the link that matters
	}},
	{"files in and out while links come and go", []Expectation{Files, Programs, Kernel}, false, func(e *env) { // F6
		dir, _ := e.outsider()
		id := e.create()
		e.put(id, text("/workspace/real/secret", "its own"))
		e.ok(e.in(id, e.sh("ln -s "+dir+" evil")...))
		job := e.start(id, sandbox.Process{Args: e.probe("swap", "real", "evil", "enough")}, sandbox.IO{}).ready()
		took, refused := 0, 0
		// A machine that is busy, or emulated, takes longer until there was a race at all.
		for began := time.Now(); time.Since(began) < 700*time.Millisecond || (took == 0 || refused == 0) && time.Since(began) < 30*time.Second; {
			got := e.takeAll(id, "/workspace/real/secret", "/workspace/**/secret")
			if got.holds("the host's") {
				e.Fatalf("%v", got.files)
			}
			took += len(got.files)
			if err := e.m.Put(e.Context(), id, []sandbox.File{text("/workspace/real/secret", "its own")}); err != nil {
				refused++
				if !errors.Is(err, sandbox.ErrRefused) {
					e.Fatal(err)
				}
			}
		}
		if took == 0 || refused == 0 {
			e.Errorf("taken %d, refused %d times: there was no race, and nothing is proven", took, refused)
		}
		e.untouched(dir)
		e.put(id, text("/workspace/enough", ""))
		e.says(job.result(), "ready\nok")
	}},
	{"files that change while they are taken", []Expectation{Files, Programs}, false, func(e *env) {
		id := e.create()
		e.put(id, text("/workspace/grows", "x"), text("/workspace/still", "still"))
		job := e.start(id, sandbox.Process{Args: e.sh(`echo ready; while [ ! -e enough ]; do echo more >> grows; done`)}, sandbox.IO{}).ready()
		for range 20 {
			got := e.takeAll(id, "/workspace/grows", "/workspace/still")
			if len(got.files) != 2 || got.files["/workspace/still"] != "still" {
				e.Errorf("%q", got.order)
			}
			if reason := got.untaken["/workspace/grows"]; reason != "" && !strings.Contains(reason, "grew") {
				e.Error(reason)
			}
		}
		e.put(id, text("/workspace/enough", ""))
		e.verdict(job.result(), sandbox.VerdictOK)
	}},
}

var addedRows = []row{
	{"root with something added", []Expectation{Roots, Isolated}, false, func(e *env) {
		dir := e.dirApart()
		for _, d := range []string{"tool/bin", "tool/lib", "other"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				e.Fatal(err)
			}
		}
		write(e, dir+"/tool/bin/f", "tool")
		write(e, dir+"/other/f", "other")
		added := []sandbox.Mount{
			{Source: dir + "/other", Target: "/opt/way/tool/lib"}, // in the next, which comes first all the same
			{Source: dir + "/tool", Target: "/opt/way/tool"},
			{Source: dir + "/other/f", Target: "/opt/file"},
		}
		probe := e.probe
		for name, change := range map[string]func(*sandbox.Spec){
			"the host's": func(*sandbox.Spec) {},
			"chosen":     func(s *sandbox.Spec) { s.Root.HostPaths = []string{dir + "/other"} },
			"a directory": func(s *sandbox.Spec) {
				s.Root.Dir = e.rootDir()
			},
			"writable": func(s *sandbox.Spec) {
				e.image(e.rootDir())(s)
				s.WritableRoot = true
			},
		} {
			id := e.create(change, func(s *sandbox.Spec) {
				s.Root.Add = added
				s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir + "/other/f", Target: "/opt/way/tool/bin/f"})
			})
			for p, want := range map[string]string{"/opt/way/tool/lib/f": "other", "/opt/file": "other", "/opt/way/tool/bin/f": "other"} {
				if got := strings.TrimSpace(e.ok(e.in(id, probe("get", p)...))); got != fmt.Sprintf("ok %q", want) {
					e.Errorf("%s: %s: %s", name, p, got)
				}
			}
			for _, p := range []string{"/opt/way/tool/new", "/opt/way/tool/lib/f", "/opt/file"} {
				if got := e.ok(e.in(id, probe("put", p, "x")...)); got != "EROFS\n" && got != "EACCES\n" {
					e.Errorf("%s: %s is written to: %s", name, p, got)
				}
			}
		}
		e.says(e.in(e.create(func(s *sandbox.Spec) { s.Root.Add = added }), probe("get", "/opt/way/tool/bin/f")...), `ok "tool"`)
		if string(readFile(dir+"/other/f")) != "other" {
			e.Error("the host's file was changed")
		}
	}},
	{"root with something added in a part of the host", []Expectation{Roots, Isolated}, false, func(e *env) {
		dir := e.dir()
		write(e, dir+"/f", "added")
		id := e.create(func(s *sandbox.Spec) {
			s.Root.Add = []sandbox.Mount{{Source: dir, Target: "/usr/share"}, {Source: dir + "/f", Target: "/usr/bin/env"}}
		})
		e.says(e.in(id, e.probe("get", "/usr/share/f")...), `ok "added"`)
		e.says(e.in(id, e.probe("get", "/usr/bin/env")...), `ok "added"`)
	}},
	{"root with something added that is made anew", []Expectation{Roots, Isolated}, false, func(e *env) {
		dir := filepath.Join(e.dir(), "d")
		for _, content := range []string{"old", "new"} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				e.Fatal(err)
			}
			write(e, dir+"/f", content)
			id := e.create(func(s *sandbox.Spec) { s.Root.Add = []sandbox.Mount{{Source: dir, Target: "/opt/d"}} })
			e.says(e.in(id, e.probe("get", "/opt/d/f")...), fmt.Sprintf("ok %q", content))
			if err := os.Rename(dir, dir+"."+content); err != nil {
				e.Fatal(err)
			}
		}
	}},
	{"root with something added that is refused", []Expectation{Roots, Isolated}, false, func(e *env) {
		dir := e.dir()
		write(e, dir+"/f", "x")
		if err := errors.Join(os.Symlink(dir, dir+"/link"), os.Mkdir(dir+"/d", 0o755), os.Mkdir(dir+"/linked", 0o755),
			os.Symlink("/etc", dir+"/linked/etc")); err != nil {
			e.Fatal(err)
		}
		fine := sandbox.Mount{Source: dir + "/d", Target: "/opt/d"}
		e.create(func(s *sandbox.Spec) { s.Root.Add = []sandbox.Mount{fine} }) // the control
		for name, list := range map[string][]sandbox.Mount{
			"a link": {{Source: dir + "/link", Target: "/opt/x"}}, "behind a link": {{Source: dir + "/link/d", Target: "/opt/x"}},
			"not there": {{Source: dir + "/none", Target: "/opt/x"}},
			"relative":  {{Source: "d", Target: "/opt/x"}}, "with ..": {{Source: dir + "/../x", Target: "/opt/x"}},
			"a device": {{Source: "/dev/null", Target: "/opt/x"}},
			"on /":     {{Source: dir, Target: "/"}}, "in /proc": {{Source: dir, Target: "/proc/x"}}, "on /dev": {{Source: dir, Target: "/dev"}},
			"in /sys":       {{Source: dir, Target: "/sys/x"}},
			"in /workspace": {{Source: dir, Target: "/workspace/x"}}, "on /tmp": {{Source: dir, Target: "/tmp"}},
			"on /home": {{Source: dir, Target: "/home"}}, "in the home": {{Source: dir, Target: "/home/sandbox/x"}},
			"twice": {fine, fine}, "no place for it": {{Source: dir, Target: "/usr/no/such/place"}},
			"on a file":             {{Source: dir, Target: "/usr/bin/env"}},
			"on a part of the host": {{Source: dir, Target: "/usr"}}, "on what parts lie in": {{Source: dir, Target: "/etc"}},
			"under a volume":           {{Source: dir, Target: "/probe"}},
			"no place in another":      {fine, {Source: dir, Target: "/opt/d/none"}},
			"behind a link in another": {{Source: dir + "/linked", Target: "/opt/l"}, {Source: dir, Target: "/opt/l/etc"}},
			"target with ..":           {{Source: dir, Target: "/opt/../x"}}, "relative target": {{Source: dir, Target: "x"}},
		} {
			err := e.cannotCreate(func(s *sandbox.Spec) { s.Root.Add = list })
			if !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("%s: %v", name, err)
			}
		}
		dir = e.dirApart()
		err := e.cannotCreate(func(s *sandbox.Spec) {
			s.Root.HostPaths, s.Root.Add = []string{dir + "/d"}, []sandbox.Mount{{Source: dir, Target: dir}}
		})
		if !errors.Is(err, sandbox.ErrInvalid) {
			e.Errorf("above a host path: %v", err)
		}
	}},
}
