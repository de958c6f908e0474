package attack

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fingerprint identifies our executables of the host.
func (t *trial) fingerprint() map[string][sha256.Size]byte {
	prints := map[string][sha256.Size]byte{}
	for _, p := range []string{t.o.Executable, filepath.Join(filepath.Dir(t.o.Executable), "sandbox-init"), os.Getenv("SANDBOX_RUN_INIT")} {
		f, err := os.Open(p)
		if err != nil {
			continue
		}
		h := sha256.New()
		if _, err := io.Copy(h, f); err == nil {
			prints[p] = [sha256.Size]byte(h.Sum(nil))
		}
		_ = f.Close()
	}
	return prints
}

func overwriteRuntime(t *trial) {
	before := t.fingerprint()
	if len(before) == 0 {
		t.abort("the host's own executable can not be read")
	}
	id := t.sandbox()
	own := t.inside(id, "held-executable", "/workspace").of("overwritten")
	t.control(own.OK(), "overwrite a program of its own through /proc", say(own))
	for _, a := range t.inside(id, "execute", "/workspace", "executable", attackerInside) {
		if a.Name != "/proc/self/exe" { // that is its own copy
			t.judge(isShut(a.Got), "open "+a.Name+" for writing", say(a), "its own: "+own.Got)
		}
	}
	// The init's child has not executed a program yet when it looks for it: by this name it finds the init.
	res, err := t.manager.Run(t.ctx, id, sandbox.Process{Args: hostile.Args("/proc/self/exe", t.mark, "executable")}, sandbox.IO{})
	got := fmt.Sprintf("not started: %v", err)
	held := true
	if err == nil {
		got = fmt.Sprintf("verdict %s, exit code %d", res.Verdict, res.Exit.Code)
		if a := answers(hostile.Parse(res.Stdout.Bytes())).of("/proc/self/exe"); a.Got != "no answer" {
			// "Busy" means open once the program has ended, unless the file is sealed in memory.
			got, held = say(a), !a.OK() && (a.Got != "ETXTBSY" || strings.HasPrefix(a.Detail, "/memfd:"))
		}
	}
	t.judge(held, "run /proc/self/exe, and open it for writing", got, "its own: "+own.Got)
	t.initsExecutable(id)
	after := t.fingerprint()
	for p, sum := range before {
		t.judge(after[p] == sum, filepath.Base(p)+" on the host afterwards",
			map[bool]string{true: "unchanged", false: "changed"}[after[p] == sum], "")
	}
}

// initsExecutable checks from outside what the init runs from: no process may be able to write to it, even with a descriptor.
func (t *trial) initsExecutable(id string) {
	pid, end := t.background(id, t.process("sleep", "1m"))
	defer end()
	f, err := os.Open("/proc/" + parentOf(pid) + "/exe")
	if err != nil {
		t.note("the init's executable can not be looked at by this user")
		return
	}
	defer f.Close()
	const sealed = unix.F_SEAL_SEAL | unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	got, held := fmt.Sprintf("a file in memory with the seals %#x", seals), seals&sealed == sealed
	if err != nil { // not in memory
		var fs unix.Statfs_t
		t.must(unix.Fstatfs(int(f.Fd()), &fs))
		held = fs.Flags&unix.ST_RDONLY != 0
		got = map[bool]string{true: "a file of a read-only mount", false: "a file that can be written to"}[held]
	}
	t.judge(held, "what the init runs from", got, "")
}
