package toolchain

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// What the programs of an image are asked, per language: the same questions as on the host, put inside a sandbox. The answers
// are a stranger's; they decide what is run in sandboxes of that image and nothing else.

func (in *inside) python(p string) (*Toolchain, error) {
	said, err := in.ask(p, "-E", "-s", "-B", "-c", pythonScript)
	if err != nil {
		return nil, err
	}
	facts := told(said.Stdout)
	t := &Toolchain{Name: Python, Version: facts["version"], Path: facts["executable"], Home: facts["prefix"]}
	if old, err := olderThan(t.Version, 3, oldestPython); err != nil {
		return nil, fmt.Errorf("does not answer as a Python does: %w", err)
	} else if old {
		return nil, fmt.Errorf("Python %s is older than 3.%d", t.Version, oldestPython) //nolint:staticcheck // a name
	}
	if !path.IsAbs(t.Path) {
		t.Path = p
	}
	if t.Home != facts["base"] {
		t.Env = map[string]string{"VIRTUAL_ENV": t.Home}
	}
	return t, nil
}

func (in *inside) node(p string) (*Toolchain, error) {
	said, err := in.ask(p, "-e", nodeScript)
	if err != nil {
		return nil, err
	}
	facts := told(said.Stdout)
	if facts["version"] == "" || !path.IsAbs(facts["executable"]) {
		return nil, errors.New("does not answer as Node does")
	}
	return &Toolchain{Name: Node, Version: facts["version"], Path: facts["executable"], Home: path.Dir(path.Dir(facts["executable"]))}, nil
}

func (in *inside) golang(p string) (*Toolchain, error) {
	said, err := in.ask(p, "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	root, version, err := goAnswer(said.Stdout)
	if err != nil {
		return nil, err
	}
	t := &Toolchain{Name: Go, Version: version, Path: path.Join(root, "bin", "go"), Home: root, Programs: map[string]string{}}
	t.Env = map[string]string{"GOROOT": root, "GOTOOLCHAIN": "local"}
	if in.root != nil && !in.isDir(path.Join(root, "src", "fmt")) {
		return nil, &incomplete{t, "the standard library's source is not in " + root, nil}
	}
	if p := in.named([]string{"-h"}, path.Join(root, "bin", "gofmt")); p != "" {
		t.Programs["gofmt"] = p
	}
	return t, nil
}

func (in *inside) rust(p string) (*Toolchain, error) {
	said, err := in.ask(p, "--print", "sysroot")
	if err != nil {
		return nil, err
	}
	sysroot := strings.TrimSpace(said.Stdout)
	if !path.IsAbs(sysroot) || strings.ContainsAny(sysroot, "\n") {
		return nil, errors.New("does not answer as rustc does")
	}
	t := &Toolchain{Name: Rust, Path: p, Home: sysroot, Programs: map[string]string{}}
	// Behind rustup's proxy it is this one that runs, without a look at a home that is not there.
	if real := path.Join(sysroot, "bin", "rustc"); in.root == nil || in.program(real) {
		if _, err := in.ask(real, "-vV"); err == nil {
			t.Path = real
		}
	}
	if said, err = in.ask(t.Path, "-vV"); err != nil {
		return nil, err
	}
	release, host := rustBuild(said.Stdout)
	if t.Version = release; release == "" {
		return nil, errors.New("does not answer as rustc does")
	}
	if in.root != nil && host != "" && !in.isDir(path.Join(sysroot, "lib", "rustlib", host, "lib")) {
		return nil, &incomplete{t, fmt.Sprintf("no standard library for %s in %s", host, sysroot), nil}
	}
	if cargo := in.named([]string{"--version"}, path.Join(path.Dir(t.Path), "cargo"), "cargo"); cargo != "" {
		t.Programs["cargo"] = cargo
	}
	linker := in.named([]string{"--version"}, "cc", "gcc", "clang")
	if linker == "" {
		return nil, &incomplete{t, "rustc needs a linker, and there is no cc", nil}
	}
	t.Programs["cc"] = linker
	if crt, err := in.ask(linker, "-print-file-name=crt1.o"); err == nil && strings.TrimSpace(crt.Stdout) == "crt1.o" {
		return nil, &incomplete{t, "rustc needs the C library's start files to link with, and there is no crt1.o", nil}
	}
	return t, nil
}

func (in *inside) java(p string) (*Toolchain, error) {
	said, err := in.ask(p, "-XshowSettings:properties", "-version")
	if err != nil {
		return nil, err
	}
	home, version := javaProperties(said.Stderr + said.Stdout)
	if !path.IsAbs(home) || version == "" {
		return nil, errors.New("does not answer as Java does")
	}
	if above := path.Dir(home); path.Base(home) == "jre" && in.named([]string{"-version"}, path.Join(above, "bin", "javac")) != "" {
		home = above // Java 8
	}
	t := &Toolchain{Name: Java, Version: version, Path: path.Join(home, "bin", "java"), Home: home, Programs: map[string]string{}}
	t.Env = map[string]string{"JAVA_HOME": home}
	for role, question := range map[string]string{"java": "-version", "javac": "-version", "jar": "--version", "jshell": "--version"} {
		if in.root == nil && (role == "jar" || role == "jshell") {
			continue // not worth a virtual machine's start
		}
		if p := in.named([]string{question}, path.Join(home, "bin", role)); p != "" {
			t.Programs[role] = p
		}
	}
	if t.Programs["javac"] == "" {
		return nil, &incomplete{t, "a runtime without javac", nil}
	}
	return t, nil
}

func (in *inside) shell(p string) (*Toolchain, error) {
	t := &Toolchain{Name: Shell, Path: p, Home: path.Dir(p), Programs: map[string]string{}}
	if path.Base(p) == "bash" {
		said, err := in.ask(p, "--version")
		if err != nil {
			return nil, err
		}
		t.Version = versionIn(firstLine(said.Stdout))
	} else if _, err := in.ask(p, "-c", ":"); err != nil {
		return nil, err
	}
	for _, role := range []string{"bash", "sh", "zsh"} {
		if found := in.named([]string{"-c", ":"}, role); found != "" {
			t.Programs[role] = found
		}
	}
	t.Programs[path.Base(p)] = p
	return t, nil
}

func (in *inside) postgres(p string) (*Toolchain, error) {
	said, err := in.ask(p, "--version")
	if err != nil {
		return nil, err
	}
	if !strings.Contains(said.Stdout, "PostgreSQL") {
		return nil, errors.New("does not answer as PostgreSQL does")
	}
	_, after, _ := strings.Cut(said.Stdout, "PostgreSQL)")
	bin := path.Dir(p)
	if in.root == nil {
		if said, err = in.ask("pg_config", "--bindir"); err != nil {
			return nil, fmt.Errorf("does not say where it is: %w", err)
		}
		bin = path.Clean(strings.TrimSpace(said.Stdout))
	}
	t := &Toolchain{Name: Postgres, Version: versionIn(after), Path: path.Join(bin, "postgres"), Home: bin, Programs: map[string]string{}}
	for _, role := range []string{"postgres", "initdb", "psql", "pg_ctl"} {
		if found := in.named([]string{"--version"}, path.Join(bin, role)); found != "" {
			t.Programs[role] = found
		} else if role != "pg_ctl" {
			return nil, &incomplete{t, fmt.Sprintf("%s is not there for version %s", role, t.Version), nil}
		}
	}
	return t, nil
}

func (c *Custom) inside(in *inside, p string) (*Toolchain, error) {
	t := &Toolchain{Name: c.Name, Path: p, Home: path.Dir(p), Programs: map[string]string{path.Base(c.Programs[0]): p}}
	for _, name := range c.Programs[1:] {
		found := name // where nobody can look it shows when it is run
		if in.root != nil {
			found = in.named(nil, name)
		}
		if found == "" {
			return nil, &incomplete{t, name + " is not there", nil}
		}
		t.Programs[path.Base(name)] = found
	}
	if len(c.VersionCommand) == 0 {
		return t, nil
	}
	command := append([]string{t.Programs[path.Base(c.VersionCommand[0])]}, c.VersionCommand[1:]...)
	if command[0] == "" {
		command[0] = c.VersionCommand[0]
	}
	said, err := in.ask(command...)
	if err != nil {
		return nil, err
	}
	if t.Version = versionIn(said.Stdout); t.Version == "" {
		t.Version = versionIn(said.Stderr) // many say it there
	}
	if t.Version == "" {
		return nil, errors.New("prints no version")
	}
	return t, nil
}
