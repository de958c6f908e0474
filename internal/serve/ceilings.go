package serve

import (
	"errors"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/ceiling"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ceilings are the operator's, and can be changed while requests are compared with them.
type ceilings struct{ now atomic.Pointer[ceiling.Set] }

var _ api.Ceilings = (*ceilings)(nil)

// set takes over the ceilings of settings.
func (c *ceilings) set(s *operator.Settings, m sandbox.Machine) error {
	if err := errors.Join(named("max-", s.Max.Validate(m)), named("max-compile-", s.MaxCompile.Validate(m))); err != nil {
		return err
	}
	c.now.Store(&ceiling.Set{Run: s.Max.Or(operator.DefaultMax()), Compile: s.MaxCompile.Or(operator.DefaultMaxCompile()), Files: ceiling.Default().Files})
	return nil
}

// named says which setting is wrong, and not which limit.
func named(prefix string, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		with := *e
		with.Op = prefix + e.Op
		return &with
	}
	return err
}

// Check refuses what is above a ceiling, of the server or the key, and lowers defaults that would be.
func (c *ceilings) Check(req *executor.Request, key api.KeyLimits) error {
	return api.CeilingsOf(*c.now.Load()).Check(req, key)
}
