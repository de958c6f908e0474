//go:build weaken

package supervisor

import "github.com/sandbox-run/sandbox-run/internal/linux/weaken"

var weakenIDs = weaken.On("one-id-pair")
