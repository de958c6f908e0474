package serve

import (
	"errors"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ceilings are the operator's ceilings. SIGHUP replaces them while requests are checked.
type ceilings struct {
	now atomic.Pointer[api.CeilingSet]
}

var _ api.Ceilings = (*ceilings)(nil)

// set validates and applies the ceilings of settings.
func (c *ceilings) set(s *operator.Settings, m sandbox.Machine) error {
	if err := errors.Join(s.Max.ValidateAs("max-", m), s.MaxCompile.ValidateAs("max-compile-", m)); err != nil {
		return err
	}
	bounds, err := s.Bounds()
	if err != nil {
		return err
	}
	most := api.DefaultCeilings()
	most.Run, most.Compile, most.Network = s.Max.Or(most.Run), s.MaxCompile.Or(most.Compile), bounds
	c.now.Store(&most)
	return nil
}

// Check refuses limits and networks above a ceiling of the server or the key, and lowers defaults to it.
func (c *ceilings) Check(req *executor.Request, key api.KeyLimits) error {
	return c.now.Load().Check(req, key)
}
