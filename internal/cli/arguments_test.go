package cli

import (
	"os"
	"strings"
	"testing"
)

// scanArguments finds the executable that does the work, and what can be started while flags are parsed.
func TestScanArguments(t *testing.T) {
	const sandbox, native, local, nothing = "sandbox ", "native ", "local ", ""
	for line, want := range map[string]string{
		// The local server is asked only if it may do the run.
		"x.py": sandbox + native + local, "-l python -c 1": sandbox + native + local, "--server auto x.py": sandbox + native + local,
		"--server=auto x.py": sandbox + native + local, "x.py -- --server never": sandbox + native + local,
		"--memory 1g x.py":    sandbox + native + local,
		"--server never x.py": sandbox + native, "--server=never x.py": sandbox + native, "--server unix:///x x.py": sandbox + native,
		"exec -- ls": sandbox + native, "--volume=a:/b x.py": sandbox + native, "--dry-run x.py": sandbox + native,
		"--strict x.py": sandbox + native,
		"--help":        nothing, "-h": nothing, "x.py --version": nothing, "help exec": nothing, "": nothing,
		"-V": nothing, "run -V": nothing, "run x.py": sandbox + native + local, "run --server never exec": sandbox + native,
		"run": sandbox + native + local,
		"-":   sandbox + native + local, "--lang python": sandbox + native + local,
		// The default backend is opened early only if it will be used.
		"x.py --backend native": sandbox, "--require gvisor x.py": sandbox, "exec --runtime runsc -- ls": sandbox,
		"exec -- ls --backend oci": sandbox + native,
		// Another executable does these.
		"--backend docker x.py": nothing, "--backend=docker x.py": nothing, "--server https://x x.py": nothing,
		"image list": nothing, "__complete im": nothing,
		// These make no sandbox that could be opened early.
		"doctor": nothing, "gc --dry-run": nothing, "version": nothing,
		// Variables count like flags.
		"SANDBOX_RUN_SERVER=never x.py": sandbox + native, "SANDBOX_RUN_VOLUME=/a:/b x.py": sandbox + native,
		"SANDBOX_RUN_BACKEND=docker x.py":   nothing,
		"SANDBOX_RUN_SERVER=https://x x.py": nothing, "SANDBOX_RUN_BACKEND=oci exec ls": sandbox,
		"SANDBOX_RUN_SERVER=auto x.py": sandbox + native + local,
	} {
		args, environ := strings.Fields(line), map[string]string{}
		if len(args) > 0 && strings.HasPrefix(args[0], environmentStem) {
			name, value, _ := strings.Cut(args[0], "=")
			environ[name], args = value, args[1:]
		}
		a := scanArguments(args, func(name string) string { return environ[name] })
		for word, is := range map[string]bool{sandbox: a.sandbox, native: a.native, local: a.localServer} {
			if is != strings.Contains(want, word) {
				t.Errorf("%s: %s%v, want %q", line, word, is, want)
			}
		}
	}
}

// Every subcommand of the list is implemented here or belongs to the full executable.
func TestCommands(t *testing.T) {
	for _, c := range commands {
		if a := scanArguments([]string{c.name, "--json"}, func(string) string { return "" }); a.command == nil || a.command.name != c.name {
			t.Errorf("%s is not found by the scan", c.name)
		}
		if (c.make == nil) != (c.by == full) || c.short == "" {
			t.Errorf("%s: made here: %v, done by %v, short %q", c.name, c.make != nil, c.by, c.short)
		}
	}
	// A sandbox is prepared for run and exec alone.
	c := &Invocation{Std: Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}}
	for _, cmd := range c.newRoot().Commands() {
		if a := scanArguments([]string{cmd.Name()}, func(string) string { return "" }); a.sandbox != (cmd.Name() == "exec" || cmd.Name() == runName) {
			t.Errorf("%s: %v", cmd.Name(), a.sandbox)
		}
	}
	for _, name := range []string{"image", "exec", "nonsense"} {
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != (name != "image") {
					t.Errorf("Implement(%q): panic %v", name, panicked)
				}
			}()
			Implement(name, (*Invocation).newVersion)
			findCommand(name).make = nil
		}()
	}
}
