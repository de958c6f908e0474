package network

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// registries are the package registries that a policy can allow by name, as the tools of the languages use them.
var registries = map[string][]string{
	"npm":    {"registry.npmjs.org:443"},
	"pypi":   {"pypi.org:443", "files.pythonhosted.org:443"},
	"go":     {"proxy.golang.org:443", "sum.golang.org:443", "storage.googleapis.com:443"},
	"crates": {"index.crates.io:443", "crates.io:443", "static.crates.io:443"},
	"maven":  {"repo.maven.apache.org:443", "repo1.maven.org:443"},
	"debian": {"deb.debian.org", "security.debian.org"},
}

// Registries are the names of all registries.
func Registries() []string { return slices.Sorted(maps.Keys(registries)) }

// RegistryRules returns the rules of a registry of the table.
func RegistryRules(name string) []string { return slices.Clone(registries[name]) }

// registryRules returns the rules of a registry: the operator's, or those of the table.
func registryRules(name string, operators map[string][]string) ([]string, error) {
	if rules, found := operators[name]; found {
		return rules, nil
	}
	if rules, found := registries[name]; found {
		return rules, nil
	}
	return nil, fmt.Errorf("registries: unknown registry %q; use one of %s", name, strings.Join(Registries(), ", "))
}
