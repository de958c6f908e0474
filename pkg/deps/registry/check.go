package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Check describes a registry, and whether it answers.
type Check struct {
	Name        string `json:"name"`
	Index       string `json:"index"`
	Credentials string `json:"credentials"` // none, user or token
	Error       string `json:"error,omitempty"`
}

// CheckAll asks the registries of a configuration, or those of the given names, for their index.
func CheckAll(ctx context.Context, file string, names []string) ([]Check, error) {
	all, err := Load(file)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = Names()
	}
	checks := make([]Check, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		if err := CheckName(name); err != nil {
			return nil, sandbox.Invalid("registry", "%w", err)
		}
		c := all[name]
		checks[i] = Check{Name: name, Index: c.Index, Credentials: "none"}
		if c.TokenFile != "" {
			checks[i].Credentials = "token"
		} else if c.User != "" {
			checks[i].Credentials = "user"
		}
		wg.Go(func() {
			if err := ask(ctx, name, c); err != nil {
				checks[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return checks, nil
}

// probes are documents that registries have, below their index.
var probes = map[string]string{"npm": "-/ping", "pypi": "pip/", "go": "golang.org/x/text/@v/list", "crates": "config.json", "maven": ""}

// ask requests a small document through a proxy of its own, as an installation would.
func ask(ctx context.Context, name string, c Config) error {
	p, err := Start(name, c)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Index+probes[name], nil)
	if err != nil {
		return err
	}
	p.authorize(req)
	answer, err := p.client.Do(req)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return fmt.Errorf("it refuses the credentials (%s)", answer.Status)
	}
	if answer.StatusCode >= http.StatusInternalServerError {
		return errors.New(answer.Status)
	}
	return nil // a mirror need not have the document
}

// Describe says where the configuration of registries is.
func Describe(file string) string {
	if file == "" {
		return "none (the public registries)"
	}
	if _, err := os.Stat(file); err != nil {
		return file + " does not exist (the public registries)"
	}
	return file
}
