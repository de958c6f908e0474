package memory

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

const mib = 1 << 20

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRead(t *testing.T) {
	meminfo := "MemTotal:       4194304 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  Reading
	}{
		"no cgroups": {nil, Reading{4096 * mib, 1024 * mib, "the machine", 0}},
		"pressure": {
			map[string]string{"proc/pressure/memory": "some avg10=50.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=12.50 avg60=1.00 avg300=0.00 " +
				"total=1\n"},
			Reading{4096 * mib, 1024 * mib, "the machine", 0.125},
		},
		"v2": {map[string]string{
			"proc/self/cgroup":                           "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "max\n", "sys/fs/cgroup/a.slice/b.service/memory.current": "900\n",
			"sys/fs/cgroup/a.slice/memory.max": "536870912\n", "sys/fs/cgroup/a.slice/memory.current": "314572800\n",
			"sys/fs/cgroup/a.slice/memory.stat": "anon 1\ninactive_file 104857600\n",
		}, Reading{512 * mib, 312 * mib, "the cgroup /a.slice", 0}},
		"v1, and a limit that is none": {map[string]string{
			"proc/self/cgroup": "9:memory:/x\n5:cpu,cpuacct:/\n0::/\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "67108864\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "99999999999\n",
			"sys/fs/cgroup/memory/x/memory.stat":         "total_inactive_file 0\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
		}, Reading{64 * mib, 0, "the cgroup /x", 0}},
		"larger than the machine": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "109951162777600\n", "sys/fs/cgroup/a/memory.current": "109951162777600\n",
		}, Reading{4096 * mib, 1024 * mib, "the machine", 0}},
	} {
		root := t.TempDir()
		write(t, root, map[string]string{"proc/meminfo": meminfo})
		write(t, root, c.files)
		if got, err := read(root); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
		if most, ok := limit(root); ok != (c.want.Total < 4096*mib) || most != c.want.Total {
			t.Errorf("%s: limit %d, %v", name, most, ok)
		}
	}
	if _, err := read(t.TempDir()); err == nil {
		t.Error("there is no /proc, and it says nothing")
	}
}

const insideVariable = "SANDBOX_RUN_TEST_MEMORY"

// inside is a process in a small cgroup: it prints what is left, allocates on request, and prints again.
func inside() {
	say := func() {
		r, err := Read()
		fmt.Println(r.Total, r.Available, err)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Scan() // it was put there
	say()
	in.Scan()
	taken := make([]byte, 32*mib)
	for i := range taken {
		taken[i] = 1
	}
	say()
	runtime.KeepAlive(taken)
}

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		inside()
		return
	}
	os.Exit(m.Run())
}

// In a real cgroup of 512 MiB (the race detector needs some) the reading shows that limit, and allocations lower it.
func TestRealGroup(t *testing.T) {
	testenv.NeedRoot(t)
	dir, limit := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprint("sandbox-run-test-", os.Getpid())), "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		dir, limit = filepath.Join("/sys/fs/cgroup", filepath.Base(dir)), "memory.max"
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0) // if not, there is no limit to set
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("no cgroup can be made here: ", err)
	}
	t.Cleanup(func() {
		for range 100 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Error("the cgroup is left")
	})
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(512*mib)), 0); err != nil {
		t.Skip("no memory controller here: ", err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), insideVariable+"=1", "GOMEMLIMIT=off")
	tell, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = tell.Close()
		_ = cmd.Wait()
	}()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	heard := func() (total, available int) {
		t.Helper()
		fmt.Fprintln(tell)
		if !lines.Scan() {
			t.Fatal("it says nothing")
		}
		if _, err := fmt.Sscan(lines.Text(), &total, &available); err != nil || !strings.HasSuffix(lines.Text(), "<nil>") {
			t.Fatalf("%q", lines.Text())
		}
		return total, available
	}
	total, before := heard()
	if total != 512*mib || before > 512*mib || before < 200*mib {
		t.Errorf("%d MiB, of which %d are left", total/mib, before/mib)
	}
	if _, after := heard(); before-after < 24*mib {
		t.Errorf("it has taken 32 MiB, and there were %d, there are %d", before/mib, after/mib)
	}
}
