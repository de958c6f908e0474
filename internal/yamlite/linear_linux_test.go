package yamlite

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time of this thread, which does not grow while other threads run.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestDecodeIsLinear reads hostile documents of 256 KiB. With the race detector each takes less than a second of CPU time; a scan to the
// end of the line at every value took ten.
func TestDecodeIsLinear(t *testing.T) {
	const size, most = 256 << 10, 5 * time.Second
	repeat := func(text string) string { return strings.Repeat(text, size/len(text)) }
	keys := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, in := range map[string]string{
		"brackets": repeat("["), "items": repeat("- "), "keys": repeat("a: "), "escapes": `"` + repeat(`\n`), "list": repeat("- a: b\n"),
		"flow lines": "[" + repeat("{a: 1},\n") + "]", "quoted lines": `"` + repeat("x\n") + `"`, "folded": ">\n" + repeat(" x\n\n"),
		"empty": "a: b\n" + repeat("\n") + "  c\n", "flow line": "x: [" + repeat("a,") + "]", "quoted": "x: [" + repeat(`"a",`) + "]",
		"flow keys": "x: {" + keys("k%d: 1, ") + "}", "block keys": keys("k%d: 1\n"), "quoted keys": keys("\"k%d\": 'x'\n"),
		"comments": repeat("# x\n") + "a: 1\n", "flow comments": "[" + repeat("a, # x\n") + "]", "spaces": "a:" + repeat(" ") + "b",
		"literal": "a: |\n" + repeat("  x\n   \n"), "plain": "a: " + repeat("x\n  "), "hashes": "a: x" + repeat("#"),
	} {
		start := threadTime(t)
		_, err := Decode([]byte(in))
		if took := threadTime(t) - start; took > most {
			t.Errorf("%s: %v (%v)", name, took, err)
		} else {
			t.Logf("%s: %v", name, took)
		}
	}
}
