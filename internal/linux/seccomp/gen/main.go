//go:build linux

// Command gen writes the system-call tables of package seccomp.
//
// It takes numbers from golang.org/x/sys, the base from moby's default profile
// for a container without capabilities, and tightens that by tighten.go. Run it
// with go generate in internal/linux/seccomp; its test fails when the tables
// are not what it would write. It runs once and has no state. It knows amd64
// and arm64.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// target is one table. File names avoid GOARCH suffixes: every table is
// compiled on every platform.
type target struct {
	arch, file, variable string
}

var targets = []target{
	{arch: "amd64", file: "table_x8664.go", variable: "callsX8664"},
	{arch: "arm64", file: "table_aarch64.go", variable: "callsAArch64"},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	for _, t := range targets {
		src, err := render(t)
		if err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(t.file, src, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// numbers reads the system calls of arch from x/sys: number → kernel name.
func numbers(arch string) (map[int]string, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		return nil, fmt.Errorf("find golang.org/x/sys/unix: %w", err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_"+arch+".go")
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	calls := map[int]string{}
	for name, nr := range constants(f) {
		name = strings.ToLower(strings.TrimPrefix(name, "SYS_"))
		if name == "arch_specific_syscall" {
			continue // the start of a reserved block, not a call
		}
		if other, taken := calls[nr]; taken {
			return nil, fmt.Errorf("%s: %s and %s are both %d", file, other, name, nr)
		}
		calls[nr] = name
	}
	return calls, nil
}

func constants(f *ast.File) map[string]int {
	out := map[string]int{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				if nr, err := strconv.Atoi(lit.Value); err == nil {
					out[v.Names[0].Name] = nr
				}
			}
		}
		return true
	})
	return out
}

// base is moby's rule for a call.
type base int

const (
	baseRefused base = iota
	baseAllowed
	basePartly // allowed for some arguments
	baseAbsent // ENOSYS
)

// profile evaluates moby's default for a process without capabilities on a
// kernel that satisfies every version gate. moby's own evaluation knows only the
// architecture it was compiled for.
func profile(arch string) (map[string]base, error) {
	out := map[string]base{}
	for _, c := range moby.DefaultProfile().Syscalls {
		if in := c.Includes; in != nil && (len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, arch)) {
			continue
		}
		if ex := c.Excludes; ex != nil && (slices.Contains(ex.Arches, arch) || ex.MinKernel != nil) {
			continue
		}
		var b base
		switch {
		case c.Action == specs.ActAllow && len(c.Args) == 0:
			b = baseAllowed
		case c.Action == specs.ActAllow:
			b = basePartly
		case c.Action == specs.ActErrno && len(c.Args) == 0 && c.ErrnoRet != nil && *c.ErrnoRet == 38:
			b = baseAbsent
		default:
			return nil, fmt.Errorf("moby profile: %v: action %s is not understood", c.Names, c.Action)
		}
		for _, name := range c.Names {
			if old, ok := out[name]; ok && old != b {
				return nil, fmt.Errorf("moby profile: two different rules for %s", name)
			}
			out[name] = b
		}
	}
	return out, nil
}

// ruleOf combines moby's rule with tighten.go.
func ruleOf(name string, nr, highest int, b base) (string, error) {
	arg, partly := byArguments[name]
	switch {
	case slices.Contains(refused, name):
		return "ruleRefuse", nil
	case slices.Contains(absent, name) || b == baseAbsent:
		return "ruleAbsent", nil
	case partly && (b == baseAllowed || b == basePartly):
		return arg, nil
	case partly:
		return "", fmt.Errorf("%s: tighten.go would loosen moby's refusal", name)
	case b == basePartly:
		return "", fmt.Errorf("%s: moby tests arguments, tighten.go has no rule for it", name)
	case b == baseAllowed:
		return "ruleAllow", nil
	case nr > highest:
		// Newer than the profile and not reviewed. Callers must be
		// ready for kernels without it.
		return "ruleAbsent", nil
	}
	return "ruleRefuse", nil
}

// render returns the table of t as Go source.
func render(t target) ([]byte, error) {
	calls, err := numbers(t.arch)
	if err != nil {
		return nil, err
	}
	bases, err := profile(t.arch)
	if err != nil {
		return nil, err
	}
	var nrs []int
	highest := 0
	for nr, name := range calls {
		nrs = append(nrs, nr)
		if _, listed := bases[name]; listed {
			highest = max(highest, nr)
		}
	}
	slices.Sort(nrs)
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated by go generate (./gen) from moby's default profile and gen/tighten.go. DO NOT EDIT.\n\n")
	fmt.Fprintf(&b, "package seccomp\n\n")
	fmt.Fprintf(&b, "// %s is the final word on every system call of %s, by number.\n", t.variable, t.arch)
	fmt.Fprintf(&b, "var %s = [...]call{\n", t.variable)
	for _, nr := range nrs {
		name := calls[nr]
		r, err := ruleOf(name, nr, highest, bases[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.arch, err)
		}
		fmt.Fprintf(&b, "%d: {%q, %s},\n", nr, name, r)
	}
	fmt.Fprintf(&b, "}\n")
	return format.Source(b.Bytes())
}
