//go:build weaken

package netproc

import (
	"os"

	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

// weakenEnvironment tells the process its mutation.
func weakenEnvironment() []string {
	return []string{weaken.Variable + "=" + os.Getenv(weaken.Variable)}
}
