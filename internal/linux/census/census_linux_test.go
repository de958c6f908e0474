package census

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseStat(t *testing.T) {
	const line = "42 (a) b (x) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 300 50 20 0 7 0 12345 1 2 3"
	s, ok := parseStat([]byte(line))
	want := stat{user: 1500 * time.Millisecond, system: 250 * time.Millisecond, childUser: 3 * time.Second,
		childSystem: 500 * time.Millisecond, threads: 7}
	if !ok || s != want {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, bad := range []string{"", "42", "42 (x)", "42 (x) S 1", strings.Replace(line, " 150 ", " -1 ", 1),
		strings.Replace(line, " 150 ", " x ", 1)} {
		if s, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func TestSumKiB(t *testing.T) {
	text := "Name:\tx\nRssAnon:\t     100 kB\nRssFile:\t 5 kB\nRssShmem:\t       3 kB\nVmPTE: x kB\n"
	if n := sumKiB([]byte(text), "RssAnon", "RssShmem", "VmPTE"); n != 103<<10 {
		t.Error(n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("42 (a) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 300 50 20 0 7 0"), []byte("RssAnon:\t 1 kB\n"))
	f.Fuzz(func(t *testing.T, stat, status []byte) {
		if s, ok := parseStat(stat); ok && (s.user < 0 || s.system < 0 || s.childUser < 0 || s.childSystem < 0) {
			t.Errorf("%+v", s)
		}
		if bytes.Count(status, []byte("\n")) == 0 && sumKiB(status, "RssAnon") > 1<<54 {
			t.Error("too much")
		}
	})
}

// A namespace of its own, with a process that holds memory and one that uses CPU time.
func TestTake(t *testing.T) {
	testenv.NeedRoot(t)
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		`/usr/bin/python3 -c 'b = bytearray(64 << 20); print("held", flush=True); import time; time.sleep(60)' &
		/usr/bin/python3 -c 'while True: pass' & wait`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	children, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/" + strconv.Itoa(cmd.Process.Pid) + "/children")
	if err != nil {
		t.Fatal(err)
	}
	init := strings.Fields(string(children))[0]
	proc, err := os.Open("/proc/" + init + "/root/proc")
	if err != nil {
		t.Fatal(err)
	}
	shm, err := os.Open("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := NewDiag()
	if err != nil {
		t.Fatal(err)
	}
	c := Open(proc, shm, os.NewFile(uintptr(fd), "diag"))
	defer c.Close()
	var n Count
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if n, err = c.Take(); err != nil {
			t.Fatal(err)
		}
		if n.CPUUser > 200*time.Millisecond {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", n)
		}
	}
	if n.Processes != 2 || n.Tasks < 2 || n.Memory < 64<<20 || n.Memory > 256<<20 {
		t.Errorf("%+v", n)
	}
	exact, err := c.Memory()
	if err != nil || exact < 64<<20 || exact > n.Memory+1<<20 {
		t.Errorf("%d, %v; the upper bound was %d", exact, err, n.Memory)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
