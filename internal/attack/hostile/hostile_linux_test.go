package hostile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// play runs an attack in this process, where it is allowed, and returns its output.
func play(t *testing.T, verb string, args ...string) []Answer {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdout := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = stdout }()
	if code := attack(verb, args); code != exitTold {
		t.Fatalf("%s: exit code %d", verb, code)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return Parse(text)
}

func answer(list []Answer, name string) Answer {
	if i := slices.IndexFunc(list, func(a Answer) bool { return a.Name == name }); i >= 0 {
		return list[i]
	}
	return Answer{Name: name, Got: "no answer"}
}

// A mask of the null device can be opened, and counts as not writable.
func TestWriteToCovered(t *testing.T) {
	cover := filepath.Join(t.TempDir(), "covered")
	if err := unix.Mknod(cover, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("no device can be made: %v", err)
	}
	if err := writable(cover); !errors.Is(err, unix.ENODEV) {
		t.Error(err)
	}
	if err := writable(os.DevNull); err != nil { // control
		t.Error(err)
	}
}

// Without isolation, attacks succeed: the suite tests real threats.
func TestAttacksSucceed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	sub := func(name string) string {
		p := filepath.Join(dir, name)
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	one := strconv.Itoa(mib)
	for _, test := range []struct {
		args            []string
		name, got, with string
	}{
		{[]string{"read", file}, file, "ok", "secret"},
		{[]string{"read", dir}, dir, "ok", ""},
		{[]string{"read", dir + "/none"}, dir + "/none", "ENOENT", ""},
		{[]string{"cat", file}, file, "ok", "secret"},
		{[]string{"write", file}, file, "ok", ""},
		{[]string{"write", dir}, dir, "ok", ""},
		{[]string{"write", dir + "/none/x"}, dir + "/none/x", "ENOENT", ""},
		{[]string{"stat", "/dev/null"}, "/dev/null", "ok", "mode 20666 device 1:3 read-only false magic 1021994"},
		{[]string{"executable", file}, file, "ok", ""},
		{[]string{"plant", sub("plant"), file}, "fifo", "ok", ""},
		{[]string{"deep", sub("deep"), "50"}, "deep", "ok", "50"},
		{[]string{"many", sub("many"), "50"}, "many", "ok", "50"},
		{[]string{"fill", "bytes", sub("bytes"), one}, "fill", "ok", one},
		{[]string{"fill", "files", sub("files"), one}, "fill", "ok", one},
		{[]string{"fill", "inodes", sub("inodes"), "9"}, "fill", "ok", "9"},
		{[]string{"fill", "sparse", sub("sparse"), one}, "fill", "ok", one},
		{[]string{"memory", "anonymous", one, "0s"}, "held", "1", "ok"},
		{[]string{"memory", "shared", one, "0s"}, "held", "1", "ok"},
		{[]string{"memory", "memfd", one, "0s"}, "held", "1", "ok"},
		{[]string{"memory", "sysv", one, "0s"}, "held", "1", "ok"},
		{[]string{"memory", "pipes", one, "0s"}, "held", "1", "ok"},
		{[]string{"memory", "sockets", one, "0s"}, "held", "", "ok"}, // more: buffers are filled whole
		{[]string{"memory", "include", one, "0s", "/dev/zero"}, "held", "1", "ok"},
		{[]string{"exhaust", "open files", "3"}, "open files", "3", "ok"},
		{[]string{"exhaust", "sockets", "3"}, "sockets", "3", "ok"},
		{[]string{"exhaust", "timers", "3"}, "timers", "3", "ok"},
		{[]string{"exhaust", "locked memory", "1"}, "locked memory", "1", "ok"},
		{[]string{"exhaust", "unknown", "1"}, "unknown", "none", ""},
		{[]string{"sleep", "0s"}, "sleeping", "ok", ""},
		{[]string{"spin", "one", "1", "1ns"}, "spun", "ok", ""},
		{[]string{"spin", "threads", "2", "1ns"}, "spun", "ok", ""},
		{[]string{"fork", "plain", "0", "0s"}, "forks", "0", "ok"},
		{[]string{"outside", "pid=" + strconv.Itoa(os.Getpid())}, "kill " + strconv.Itoa(os.Getpid()), "ok", ""},
		{[]string{"print", `"a\tok\t\"b\"\n"`}, "a", "ok", "b"},
	} {
		if got := answer(play(t, test.args[0], test.args[1:]...), test.name); test.got != "" && got.Got != test.got || test.with != "" &&
			got.Detail != test.with {
			t.Errorf("%q: %+v, want %s %q", test.args, got, test.got, test.with)
		}
	}
	if list := play(t, "processes"); answer(list, strconv.Itoa(os.Getpid())).Got != "ok" {
		t.Errorf("%d processes, and not this one", len(list))
	}
	if list := play(t, "descriptors"); answer(list, "cwd").Got != "ok" || answer(list, "fd 0").Got != "ok" {
		t.Errorf("%+v", list)
	}
	if list := play(t, "status"); answer(list, "Seccomp").Detail == "" || answer(list, "pid").Got != strconv.Itoa(os.Getpid()) {
		t.Errorf("%+v", list)
	}
}

func TestUnknownAttack(t *testing.T) {
	if code := attack("no such", nil); code != exitUnknown {
		t.Errorf("%d", code)
	}
	Play() // this process was not started as an attacker: Play returns
}

func TestParse(t *testing.T) {
	got := Parse([]byte("noise\na\tok\t\"x\\n\"\nb\tEPERM\tunquoted\nc\tEPERM\t\"\"\n"))
	if want := []Answer{{"a", "ok", "x\n"}, {"c", "EPERM", ""}}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
