package attack

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// waitedForCPU is for how long, since the machine was started, some task has waited for a processor (/proc/pressure/cpu); 0
// where the kernel does not report it.
func waitedForCPU() time.Duration {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	var microseconds int64
	if _, total, ok := strings.Cut(string(text), "total="); ok {
		_, _ = fmt.Sscan(total, &microseconds)
	}
	return time.Duration(microseconds) * time.Microsecond
}
