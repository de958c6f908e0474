//go:build weaken

package zygote

import "github.com/sandbox-run/sandbox-run/internal/linux/weaken"

var (
	weakenKeyring = weaken.On("no-keyring")
	weakenFilter  = weaken.On("no-filter") || weaken.On("fork-bare") || weaken.On("fork-no-filter")
)
