package golang

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Most programs are one file that imports the standard library. For these, the go command searches for packages whose place is
// known and calls the compiler and the linker in the same way each time, which takes half of the time. So the commands are read
// once, when the cache is filled, and kept:
//
//	WarmDir/go-0a1b2c…/direct/build            commands of a shell
//	                          importcfg        paths of the packages that a program may import
//	                          importcfg.link   paths of these and of those that they import
//
// A program that fails to build in this way is built by the go command, whose messages are then printed.

const (
	// goDirectDir is the directory of these files in the sandbox.
	goDirectDir = language.ToolDir + "/go"
	// goDirectly has the arguments: the file, the program to make, and the go command.
	goDirectly = `if [ -r ` + goDirectDir + `/build ]; then . ` + goDirectDir + `/build; else shift 2; fi; exec "$@"`
)

func (w *libraryCache) directDir() string { return filepath.Join(w.dir, "direct") }

func (w *libraryCache) knowsDirect() bool {
	_, err := os.Stat(filepath.Join(w.directDir(), "build"))
	return err == nil
}

// directly returns a command that builds without the go command if that is possible.
func directly(binary, target string, args []string) []string {
	return slices.Concat([]string{"/bin/sh", "-c", goDirectly, "go", target, binary}, args)
}

// goDirectives are what only the go command understands or reads differently: the first are in comments, the last is the import
// of C.
var goDirectives = []string{"//go:debug", "//go:embed", "//go:build", "// +build", "//+build", "// import", "/* import", `"C"`, "`C`"}

// isDirect reports whether a program of one file means the same to the compiler as to the go command.
func isDirect(name string, src []byte, env map[string]string) bool {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	base, ok := strings.CutSuffix(name, ".go")
	if !ok || base == "" || base[0] == '-' || strings.Trim(base, plain) != "" {
		return false // it may be for another system or directory
	}
	for k := range env {
		if strings.HasPrefix(k, "GO") || strings.HasPrefix(k, "CGO") {
			return false
		}
	}
	return !slices.ContainsFunc(goDirectives, func(d string) bool { return bytes.Contains(src, []byte(d)) })
}

// learnDirect reads from the go command how it builds a program that imports all packages.
func (w *libraryCache) learnDirect(ctx context.Context, have map[string]bool) error {
	var src strings.Builder
	fmt.Fprintf(&src, "package main // %d\n\n", time.Now().UnixNano()) // unique, so that it is not in the cache
	for p := range have {
		if isStandardName(p) && !strings.Contains(p, "/internal/") && w.hasSource(p) {
			fmt.Fprintf(&src, "import _ %q\n", p)
		}
	}
	src.WriteString("\nfunc main() {}\n")
	said, err := w.runGo(ctx, "main.go", src.String(),
		slices.Concat([]string{"build", "-x"}, goFlags(w.tool.Version), []string{goLinkFlags, "-o", "main", "./main.go"}))
	if err != nil {
		return err
	}
	d, err := readDirect(said, w.buildDir(), prepared.HostPath(w.tool, w.tool.Home), w.tool.Home)
	if err != nil {
		return err
	}
	for _, f := range []struct{ name, text string }{{"importcfg", d.imports}, {"importcfg.link", d.links}, {"build", d.script()}} {
		name := filepath.Join(w.directDir(), f.name)
		if err := errors.Join(os.WriteFile(name+".new", []byte(f.text), 0o644), os.Chmod(name+".new", 0o644),
			os.Rename(name+".new", name)); err != nil {
			return err
		}
	}
	return nil
}

// direct has the commands that build a program.
type direct struct {
	compile, link  []string // with their flags
	imports, links string   // their lists of packages
}

// script returns a script for a shell: $1 is the file and $2 the program to make. It ends the shell if the build succeeds.
func (d *direct) script() string {
	quoted := func(list []string) string {
		var all []string
		for _, s := range list {
			all = append(all, quoteShell(s))
		}
		return strings.Join(all, " ")
	}
	return "w=" + sandbox.TmpDir + "/.go-direct\n" +
		"mkdir -p \"$w\" \"${2%/*}\"\n" +
		quoted(d.compile) + ` -o "$w/main.a" -trimpath "$w=>" -buildid sandbox-run/sandbox-run -importcfg ` + goDirectDir +
		`/importcfg -pack "$1" >/dev/null 2>&1 &&` + "\n" +
		quoted(d.link) + ` -o "$2" -importcfg ` + goDirectDir +
		`/importcfg.link -buildid=sandbox-run/sandbox-run/sandbox-run/sandbox-run "$w/main.a" >/dev/null 2>&1` + "\n" +
		"code=$?\nrm -rf \"$w\"\n[ $code = 0 ] && exit 0\nshift 2\n"
}

// errDirect: the output of go build -x has another form than the known one.
var errDirect = errors.New("the go command builds in a way that is not known")

// readDirect reads the output of go build -x. It rewrites the paths of the cache and of the toolchain to those in the sandbox.
func readDirect(said, cache, home, homeInside string) (*direct, error) {
	d := &direct{}
	inside := func(s string) string {
		if rest, ok := strings.CutPrefix(s, home+"/"); ok {
			return homeInside + "/" + rest
		}
		return s
	}
	var config *string
	for line := range strings.Lines(said) {
		line = strings.TrimSuffix(line, "\n")
		switch words := strings.Fields(line); {
		case line == "EOF":
			config = nil
		case config != nil:
			name, at, ok := strings.Cut(strings.TrimPrefix(line, "packagefile "), "=")
			switch {
			case strings.HasPrefix(line, "modinfo "):
				*config += line + "\n"
			case !ok || !strings.HasPrefix(line, "packagefile "), name == "command-line-arguments":
			case !strings.HasPrefix(at, cache+"/"):
				return nil, errDirect
			default:
				*config += "packagefile " + name + "=" + goCacheDir + strings.TrimPrefix(at, cache) + "\n"
			}
		case len(words) > 1 && strings.HasPrefix(line, "cat >") && strings.Contains(line, "/b001/importcfg.link "):
			config = &d.links
		case len(words) > 1 && strings.HasPrefix(line, "cat >") && strings.Contains(line, "/b001/importcfg "):
			config = &d.imports
		case len(words) > 1 && strings.Contains(line, "/compile -o $WORK/b001/_pkg_.a"):
			d.compile = withoutFlags(words, inside, "-o", "-trimpath", "-buildid", "-importcfg", "-pack")
		case len(words) > 1 && strings.Contains(line, "/link -o $WORK/b001/exe/a.out"):
			d.link = withoutFlags(words[slices.IndexFunc(words, func(s string) bool { return strings.HasSuffix(s, "/link") }):], inside, "-o",
				"-importcfg", "-buildid=")
		}
	}
	if len(d.compile) == 0 || len(d.link) == 0 || d.imports == "" || d.links == "" || !slices.Contains(d.compile, "-nolocalimports") {
		return nil, errDirect
	}
	return d, nil
}

// withoutFlags returns a command without some flags and their values, and without the file at its end. It fails for a command
// with characters that a shell interprets.
func withoutFlags(words []string, inside func(string) string, flags ...string) []string {
	out := []string{inside(words[0])}
	for i := 1; i < len(words)-1; i++ {
		w := words[i]
		switch {
		case slices.Contains(flags, w):
			if w != "-pack" {
				i++
			}
		case slices.ContainsFunc(flags, func(f string) bool { return strings.HasSuffix(f, "=") && strings.HasPrefix(w, f) }):
		case strings.ContainsAny(w, "$\"'\\`"):
			return nil
		default:
			out = append(out, w)
		}
	}
	return out
}
