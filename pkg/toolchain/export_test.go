package toolchain

import (
	"context"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// What tests look at from outside, where they can import languages.

// Resolve follows links.
func Resolve(p string) (Program, error) { return resolve(p) }

// Links are where the links on the way to a program are.
func (r *Program) Links() []string { return r.links }

// Via are all names that a program had on the way.
func (r *Program) Via() []string { return r.via }

// NewSearch is a search on this machine with an environment of the test's own.
func NewSearch(name string, env map[string]string, system []string) *Search {
	return newSearch(context.Background(), &Description{Name: name}, env, 0, system)
}

// SetNix has another directory taken for Nix's.
func (v *View) SetNix(dir string) { v.nix = dir }

// List is the mounts.
func (v *View) List() []sandbox.Mount { return v.list() }

// SetSystem has other directories taken for the system's.
func (f *Finder) SetSystem(dirs ...string) { f.system = dirs }

// Managers is how many package managers there are hints for.
func Managers() int { return len(managers) }

// Of the store's file.
const (
	MaxStore  = maxStore
	StoreTail = storeTail
)
