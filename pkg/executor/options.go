package executor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// understands refuses options that the language would ignore: a restriction that is not kept must not be accepted.
func (l *Language) understands(o LanguageOptions) error {
	for _, opt := range []struct {
		name  string
		given bool
	}{
		{"commands", len(o.Commands) > 0}, {"forbid-imports", len(o.ForbidImports) > 0}, {"release", o.Release},
		{"edition", o.Edition != ""}, {"test", o.Test}, {"setup", len(o.Setup) > 0},
	} {
		if opt.given && !slices.Contains(l.Options, opt.name) {
			return sandbox.Invalid(opt.name, "%s has no such option", l.Title)
		}
	}
	return nil
}

func errNoKit(language string) error {
	return &sandbox.Error{
		Op: "sandbox-kit", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s needs it, and it is neither beside sandbox-run nor on PATH", language),
		Hint: "make install, or SANDBOX_RUN_KIT=/path/to/sandbox-kit",
	}
}

// errKit is what kept the kit from doing its work, as it says it.
func errKit(op string, stderr []byte) error {
	said := strings.TrimSpace(string(stderr))
	if strings.Contains(said, "could not map anonymous shared memory") {
		return &sandbox.Error{
			Op: op, Kind: sandbox.ErrUnsupported, Err: errors.New("a server needs shared memory, which sandboxes refuse where memory is limited by looking (tier namespace)"),
			Hint: "sandbox-run doctor, which says how to have cgroups",
		}
	}
	return &sandbox.Error{Op: op, Err: errors.New(said)}
}
