package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What the machine's own start-up has registered with atexit comes after the driver's last look, which then must not be the end.
func TestMachinesOwnCallbacks(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))").CombinedOutput(); err != nil {
		t.Skipf("needs %s, 3.10 or later: %v %s", python, err, out)
	}
	for name, test := range map[string]struct {
		own   string
		early bool
	}{
		"none": {"", true},
		"harmless": {"import atexit\ndef exit_cacert_ctx(): pass\nexit_cacert_ctx.__module__ = 'certifi.core'\n" +
			"atexit.register(exit_cacert_ctx)\n", true},
		"some":    {"import atexit\natexit.register(print, 'bye')\n", false},
		"logging": {"import logging\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			marker := filepath.Join(dir, "forked")
			// An interpreter whose forks may end early has tried how programs end, in forks; and how to fork, in two, whichever it is.
			own := "import os\nos.register_at_fork(before=lambda: os.write(os.open('" + marker +
				"', os.O_CREAT | os.O_APPEND | os.O_WRONLY), b'.'))\n" + test.own
			for path, text := range map[string]string{"driver/sitecustomize.py": string(sitecustomize), "machine/sitecustomize.py": own} {
				path = filepath.Join(dir, path)
				if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
			defer ours.Close()
			cmd := exec.CommandContext(t.Context(), python, filepath.Join(dir, "main.py"))
			var said strings.Builder
			cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, theirs, &said, &said
			cmd.Env = []string{"PYTHONPATH=" + dir + "/driver:" + dir + "/machine", "PYTHONDONTWRITEBYTECODE=1", "SANDBOX_RUN_FORK=1"}
			err = cmd.Start()
			_ = theirs.Close()
			if err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 100)
			n, err := ours.Read(answer)
			_ = ours.Close() // which ends it
			if ended := cmd.Wait(); err != nil || string(answer[:n]) != "ready" || ended != nil {
				t.Fatalf("%q, %v, %v: %s", answer[:n], err, ended, said.String())
			}
			if forked, err := os.ReadFile(marker); err != nil || len(forked) < 2 || (len(forked) > 2) != test.early {
				t.Errorf("it forked %d times, %v; may its forks end early: %v", len(forked), err, test.early)
			}
		})
	}
}
