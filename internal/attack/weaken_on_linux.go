//go:build weaken

package attack

import (
	"os"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

func weakenCases() []string {
	return strings.FieldsFunc(os.Getenv(weaken.Cases), func(r rune) bool { return r == ',' })
}
