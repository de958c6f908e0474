package native

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// BenchmarkFork compares the life of a sandbox with one program, cold and forked in turns, with the bare interpreter:
//
//	go test -run '^$' -bench BenchmarkFork -benchtime 50x ./pkg/sandbox/native
func BenchmarkFork(b *testing.B) {
	backend := newBackend(b, Options{})
	b.Cleanup(func() { backend.Close() })
	z := newZygote(b, backend, warmSpec(), warmProcess())
	ctx := context.Background()
	const program = "print('hello')\n"
	one := func(z sandbox.Zygote) {
		if got, err := runIn(b, backend, z, warmSpec(), warmProcess(), program, ""); err != nil || got.Stdout != "hello\n" {
			b.Fatalf("%+v, %v", got, err)
		}
	}
	one(nil)
	one(z)
	usage := func() (wall, cpu time.Duration) { // of this process, the zygote, and all reaped children
		var self, children unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &self)
		_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &children)
		cpu = time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
		st, err := z.(*zygote).group.Stat()
		if err != nil {
			b.Fatal(err)
		}
		return time.Duration(time.Now().UnixNano()), cpu + st.CPUUser + st.CPUSystem
	}
	ways := []struct {
		name      string
		run       func()
		wall, cpu time.Duration
	}{{name: "cold", run: func() { one(nil) }}, {name: "fork", run: func() { one(z) }},
		{name: "bare", run: func() { runBare(ctx, b, program) }}}
	for b.Loop() {
		for i := range ways {
			w := &ways[i]
			wall, cpu := usage()
			w.run()
			after, used := usage()
			w.wall, w.cpu = w.wall+after-wall, w.cpu+used-cpu
		}
	}
	for _, w := range ways {
		b.ReportMetric(float64(w.wall.Microseconds())/float64(b.N)/1000, w.name+"-ms")
		b.ReportMetric(float64(w.cpu.Microseconds())/float64(b.N)/1000, w.name+"-cpu-ms")
	}
	b.ReportMetric(float64(ways[1].wall)/float64(ways[0].wall), "fork/cold")
	b.ReportMetric(float64(ways[1].wall)/float64(ways[2].wall), "fork/bare")
}

// runBare runs the program with the same interpreter and variables, without a sandbox.
func runBare(ctx context.Context, b *testing.B, program string) {
	b.Helper()
	file := b.TempDir() + "/main.py"
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, pythonPath, file)
	cmd.Env = warmProcess().Environ()
	if out, err := cmd.Output(); err != nil || string(out) != "hello\n" {
		b.Fatalf("%q, %v", out, err)
	}
}
