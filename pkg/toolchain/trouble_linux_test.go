package toolchain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/javascript"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/rust"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
	"golang.org/x/sys/unix"
)

// A shim that hangs is given up with all it started, and the next one serves.
func TestHangs(t *testing.T) {
	w := newWorld(t)
	w.script("bin/node", `sleep 1000 & echo $! > @/child; wait`)
	w.nodeAt("good/bin/node", "20.0.0")
	w.link(w.at("good/bin/node"), "bin2/node")
	f := w.finder()
	f.Timeout = 3 * time.Second // in which the good one has to answer as well
	got := w.mustFind(f, &javascript.Node)
	if got.Version != "20.0.0" || len(got.Skipped) != 1 || !strings.Contains(got.Skipped[0], "did not answer within 3s") {
		t.Errorf("found %+v", got)
	}
	said, err := os.ReadFile(w.at("child"))
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(string(said))
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the shim's child is still there: %s", stat)
		}
	}
}

func TestCancelled(t *testing.T) {
	w := newWorld(t)
	w.script("bin/node", "sleep 1000")
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := w.finder().Find(ctx, &javascript.Node); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// What does not answer as it should is passed over, with the reason.
func TestNonsense(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"garbage":        {`head -c 1000 /dev/urandom`, "does not answer as Node does"},
		"nothing":        {`true`, "does not answer as Node does"},
		"endless":        {`yes sandbox-run.version=1`, "more than 64 KiB"},
		"failure":        {`printf '\033[31mno default\nconfigured\n' >&2; exit 3`, "exit status 3: [31mno default"},
		"relative":       {`echo sandbox-run.version=20.0.0; echo sandbox-run.executable=node`, "does not answer as Node does"},
		"nowhere":        {`echo sandbox-run.version=20.0.0; echo sandbox-run.executable=/no/such/node`, "no such file"},
		"a directory":    {`echo sandbox-run.version=20.0.0; echo sandbox-run.executable=/usr`, "not an executable file"},
		"no interpreter": {"", "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.script("bin/node", c.script)
			m := w.missing(&javascript.Node)
			if len(m.Tried) != 1 || !strings.Contains(m.Tried[0], c.want) || strings.ContainsRune(m.Error(), 0x1b) {
				t.Errorf("tried %q", m.Tried)
			}
			if len(m.Install) == 0 || !strings.HasPrefix(m.Install[0], "apt-get install nodejs") && toolchain.Exists("/usr/bin/apt-get") {
				t.Errorf("install %q", m.Install)
			}
		})
	}
}

// Programs are asked in /, with the variables of version managers and none of a project's or an attacker's.
func TestPlainEnvironment(t *testing.T) {
	w := newWorld(t)
	w.script("bin/node", `pwd > @/saw; env >> @/saw; cat >> @/saw; echo sandbox-run.version=20.0.0; echo sandbox-run.executable=$0`)
	w.environ = append(w.environ, "NODE_OPTIONS=--require=/evil.js", "LD_PRELOAD=/evil.so", "BASH_ENV=/evil", "PYTHONPATH=/evil",
		"RUSTC_WRAPPER=/evil", "NVM_DIR=/opt/nvm")
	w.mustFind(w.finder(), &javascript.Node)
	saw, err := os.ReadFile(w.at("saw"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(saw), "evil") || !strings.HasPrefix(string(saw), "/\n") {
		t.Errorf("a program that was asked saw\n%s", saw)
	}
	if !strings.Contains(string(saw), "NVM_DIR=/opt/nvm") || !strings.Contains(string(saw), "COREPACK_ENABLE_NETWORK=0") {
		t.Errorf("the program did not see the user's choice:\n%s", saw)
	}
}

// Directories that others may write to, or that depend on where one stands, supply nothing.
func TestUntrustedPath(t *testing.T) {
	testenv.NeedRoot(t)
	for name, spoil := range map[string]func(w *world){
		"writable by everybody": func(w *world) { os.Chmod(w.at("bin"), 0o777) },
		"is writable by everybody": func(w *world) { // as /tmp is: anybody may add to it
			os.Chmod(w.at("bin"), 0o777|os.ModeSticky)
		},
		"belongs to another user (4711)":     func(w *world) { os.Chown(w.at("bin"), 4711, 0) },
		"node belongs to another user":       func(w *world) { os.Chown(w.at("bin/node"), 4711, 0) },
		"node is writable by everybody":      func(w *world) { os.Chmod(w.at("bin/node"), 0o777) },
		"on PATH: relative to the working":   func(w *world) { w.environ[1] = "PATH=bin:" + w.at("bin2") },
		"which means the working directory":  func(w *world) { w.environ[1] = "PATH=:" + w.at("bin2") },
		"mode 0644":                          func(w *world) { os.Chmod(w.at("bin/node"), 0o644) },
		"stuff is writable by everybody":     func(w *world) { w.mkdir("stuff/real"); os.Chmod(w.at("stuff"), 0o777); throughLink(w) },
		"link belongs to another user (4711": func(w *world) { w.mkdir("stuff/real"); throughLink(w); os.Lchown(w.at("link"), 4711, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.nodeAt("bin/node", "20.0.0")
			w.nodeAt("good/bin/node", "18.0.0")
			w.link(w.at("good/bin/node"), "bin2/node")
			if got := w.mustFind(w.finder(), &javascript.Node); got.Version != "20.0.0" || len(got.Skipped) > 0 { // the control
				t.Fatalf("found %+v", got)
			}
			spoil(w)
			got := w.mustFind(w.finder(), &javascript.Node)
			if got.Version != "18.0.0" || len(got.Skipped) != 1 || !strings.Contains(got.Skipped[0], name) {
				t.Errorf("found %s, passed over %q", got.Version, got.Skipped)
			}
		})
	}
}

func throughLink(w *world) {
	w.nodeAt("stuff/real/node", "20.0.0")
	w.link("stuff/real", "link")
	w.environ[1] = "PATH=" + w.at("link") + ":" + w.at("bin2")
}

// A group that the administrator lets write to a directory of theirs, as Debian does with /usr/local, is their choice.
func TestGroupWritable(t *testing.T) {
	testenv.NeedRoot(t)
	w := newWorld(t)
	w.nodeAt("bin/node", "20.0.0")
	os.Chown(w.at("bin"), 0, 50)
	os.Chmod(w.at("bin"), 0o2775)
	if got := w.mustFind(w.finder(), &javascript.Node); got.Version != "20.0.0" {
		t.Errorf("found %+v", got)
	}
}

func TestUnreadable(t *testing.T) {
	w := newWorld(t)
	w.nodeAt("node/bin/node", "20.0.0")
	w.link(w.at("node/bin/node"), "bin/node")
	w.mkdir("node/lib/private")
	if err := os.Chmod(w.at("node/lib/private"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := w.missing(&javascript.Node)
	if m.Partial == nil || m.Partial.Version != "20.0.0" || m.Install[0] != "chmod -R o+rX "+w.at("node") ||
		!strings.Contains(m.Error(), w.at("node/lib/private")) {
		t.Errorf("%v\n%q", m, m.Install)
	}
	if err := os.Chmod(w.at("node/lib/private"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.mustFind(w.finder(), &javascript.Node)
	w.write("node/lib/module.js", "", 0o600)
	if m := isMissing(second(w.find(w.coldFinder(), &javascript.Node))); m == nil || !strings.Contains(m.Error(), "module.js") {
		t.Errorf("%v", m)
	}
}

func second(_ *toolchain.Toolchain, err error) error { return err }

func (w *world) coldFinder() *toolchain.Finder {
	f := w.finder()
	f.NoStore = true
	return f
}

func TestRustWithoutLinker(t *testing.T) {
	w := newWorld(t)
	w.script("opt/rust/bin/rustc", `case $1 in --print) echo "@/opt/rust";; -vV) printf 'host: host\nrelease: 1.80.0\n';; esac`)
	w.link(w.at("opt/rust/bin/rustc"), "bin/rustc")
	w.mkdir("opt/rust/lib/rustlib/host/lib")
	f := w.finder()
	f.SetSystem(w.at("empty"))
	_, err := w.find(f, rust.Language.Toolchain)
	if m := isMissing(err); m == nil || m.Partial == nil || !strings.Contains(m.Error(), "needs a linker") ||
		!strings.Contains(strings.Join(m.Install, "\n"), "apt-get install gcc") {
		t.Errorf("%v", err)
	}
}

// countingNode is a Node that leaves a line each time it is asked.
func (w *world) countingNode() (asked func() int) {
	w.nodeAt("node/bin/node", "20.0.0")
	w.script("node/bin/node", `echo asked >> @/asked; echo sandbox-run.version=20.0.0; echo sandbox-run.executable=$0`)
	w.link(w.at("node/bin/node"), "bin/node")
	return func() int {
		data, _ := os.ReadFile(w.at("asked"))
		return bytes.Count(data, []byte("\n"))
	}
}

func TestStore(t *testing.T) {
	w := newWorld(t)
	asked := w.countingNode()
	first := w.mustFind(w.finder(), &javascript.Node)
	for range 3 {
		again := w.mustFind(w.finder(), &javascript.Node)
		if again.ID != first.ID || !slices.Equal(again.Mounts, first.Mounts) || again.Path != first.Path {
			t.Errorf("found %+v, then %+v", first, again)
		}
	}
	if asked() != 1 {
		t.Fatalf("asked %d times for what was known", asked())
	}
	path := w.at("cache/toolchains.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	good, _ := os.ReadFile(path)
	if !json.Valid(good) {
		t.Errorf("the store is no JSON:\n%s", good)
	}
	// Another PATH is another question; both answers are kept.
	other := w.finder()
	other.Environ = []string{w.environ[0], w.environ[1] + ":/nowhere"}
	w.mustFind(other, &javascript.Node)
	w.mustFind(w.finder(), &javascript.Node)
	if asked() != 2 {
		t.Errorf("asked %d times for two PATHs", asked())
	}

	want := asked()
	for name, damage := range map[string]func(){
		"empty":     func() { os.WriteFile(path, nil, 0o600) },
		"cut short": func() { os.WriteFile(path, good[:len(good)/2], 0o600) },
		"binary":    func() { os.WriteFile(path, bytes.Repeat([]byte{0, 0xff}, 5000), 0o600) },
		"too large": func() {
			os.WriteFile(path, append(slices.Clone(good), bytes.Repeat([]byte(" "), toolchain.MaxStore)...), 0o600)
		},
		"another version": func() {
			os.WriteFile(path, bytes.Replace(good, []byte(`toolchains":1`), []byte(`toolchains":2`), 1), 0o600)
		},
		"a broken record": func() {
			os.WriteFile(path, bytes.Replace(good, []byte(`"20.0.0"`), []byte(`20`), 1), 0o600)
		},
		"no stamps": func() {
			os.WriteFile(path, slices.Concat(good[:bytes.Index(good, []byte(w.at("bin/node")+`","0","0"`))],
				[]byte(w.at("bin/node")+`","0","0","0","0"]`+toolchain.StoreTail)), 0o600)
		},
		"gone":                 func() { os.Remove(path) },
		"others may write":     func() { os.Chmod(path, 0o666) },
		"a link":               func() { os.Rename(path, path+"2"); os.Symlink(path+"2", path) },
		"a FIFO":               func() { os.Remove(path); unix.Mkfifo(path, 0o600) },
		"another owner":        func() { os.Chown(path, 4711, -1) },
		"the program is newer": func() { now := time.Now().Add(time.Hour); os.Chtimes(w.at("node/bin/node"), now, now) },
		"another came first": func() {
			w.script("bin/nodejs", "false")
			os.Remove(w.at("bin/nodejs"))
			w.link("../node/bin/node", "bin/node")
		},
		"the prefix is another": func() { os.Rename(w.at("node"), w.at("old")); w.countingNode() },
	} {
		if name == "another owner" && os.Geteuid() != 0 {
			continue
		}
		damage()
		if got := w.mustFind(w.finder(), &javascript.Node); got.Version != "20.0.0" {
			t.Errorf("%s: found %+v", name, got)
		}
		if want++; asked() != want {
			t.Errorf("%s: asked %d times, want %d", name, asked(), want)
			want = asked()
		}
		// And the store is whole again.
		w.mustFind(w.finder(), &javascript.Node)
		if asked() != want {
			t.Errorf("%s: what was found afterwards was not kept", name)
			want = asked()
		}
	}
}

// A program that now comes first on PATH is the user's choice from then on.
func TestAnotherComesFirst(t *testing.T) {
	w := newWorld(t)
	w.nodeAt("good/bin/node", "18.0.0")
	w.link(w.at("good/bin/node"), "bin2/node")
	f := w.finder()
	w.mustFind(f, &javascript.Node)
	w.nodeAt("new/bin/node", "22.0.0")
	w.link(w.at("new/bin/node"), "bin/node")
	if got := w.mustFind(f, &javascript.Node); got.Version != "22.0.0" {
		t.Errorf("found %s", got.Version)
	}
	os.Remove(w.at("bin/node"))
	if got := w.mustFind(f, &javascript.Node); got.Version != "18.0.0" {
		t.Errorf("found %s", got.Version)
	}
}

// A store that can not be written costs a search, not the answer.
func TestStoreUnwritable(t *testing.T) {
	w := newWorld(t)
	asked := w.countingNode()
	for range 2 {
		f := w.finder()
		f.Store = "/proc/no/such/toolchains.json"
		w.mustFind(f, &javascript.Node)
	}
	if asked() != 2 {
		t.Errorf("asked %d times", asked())
	}
}

// Many finders at once, as many processes would be: all find the same, and the store is whole at every moment.
func TestConcurrent(t *testing.T) {
	w := newWorld(t)
	asked := w.countingNode()
	shared := w.finder()
	var all sync.WaitGroup
	ids := make([]string, 24)
	for i := range ids {
		all.Go(func() {
			f := shared
			if i%2 == 0 {
				f = w.finder()
				f.Environ = []string{w.environ[0], w.environ[1] + ":/n" + strconv.Itoa(i)}
			}
			got, err := w.find(f, &javascript.Node)
			if err != nil {
				t.Error(err)
				return
			}
			got.Mounts[0].Source = "mine to change" // a copy
			ids[i] = got.ID
			if data, err := os.ReadFile(f.Store); err == nil && !json.Valid(data) {
				t.Errorf("the store is damaged:\n%s", data)
			}
		})
	}
	all.Wait()
	if slices.Sort(ids); ids[0] == "" || ids[0] != ids[len(ids)-1] {
		t.Errorf("found different ones: %q", ids)
	}
	if n := asked(); n != 13 {
		t.Errorf("asked %d times; 12 finders of their own and 12 that share one ask 13 times", n)
	}
	if left, _ := filepath.Glob(w.at("cache/.toolchains-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if got := w.mustFind(shared, &javascript.Node); got.Mounts[0].Source != w.at("node") {
		t.Error("a caller changed what the finder knows")
	}
}
