//go:build weaken

package clone

import "github.com/sandbox-run/sandbox-run/internal/linux/weaken"

var weakenKeyring = weaken.On("no-keyring")
