//go:build weaken

package network

import "github.com/sandbox-run/sandbox-run/internal/linux/weaken"

var (
	weakenRules   = weaken.On("network-no-rules")
	weakenPrivate = weaken.On("network-no-private")
)
