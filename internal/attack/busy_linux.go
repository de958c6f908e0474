package attack

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// waitedForCPU is for how long, since the machine was started, some task has waited for a processor; 0 where the kernel does
// not report it.
func waitedForCPU() time.Duration { return pressure("cpu") }

// waitedForDisk is the same for reading and writing.
func waitedForDisk() time.Duration { return pressure("io") }

// pressure reads the total of the first line of /proc/pressure/KIND.
func pressure(kind string) time.Duration {
	text, err := os.ReadFile("/proc/pressure/" + kind)
	if err != nil {
		return 0
	}
	var microseconds int64
	if _, total, ok := strings.Cut(string(text), "total="); ok {
		_, _ = fmt.Sscan(total, &microseconds)
	}
	return time.Duration(microseconds) * time.Microsecond
}
