package etc

import (
	"bytes"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPasswd(t *testing.T) {
	u := sandbox.DefaultUser
	const own = "sandbox:x:1000:1000::/home/sandbox:/bin/sh\n"
	for name, c := range map[string]struct{ image, want string }{
		"none":            {"", "root:x:0:0:root:/:/usr/sbin/nologin\n" + own + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"},
		"added":           {"root:x:0:0:root:/root:/bin/bash\n", "root:x:0:0:root:/root:/bin/bash\n" + own},
		"no last newline": {"root:x:0:0:root:/root:/bin/bash", "root:x:0:0:root:/root:/bin/bash\n" + own},
		"its uid": {"root:x:0:0::/:/bin/sh\nnode:x:1000:1000::/home/node:/bin/bash\nx:x:10000:1000::/:/\n",
			"root:x:0:0::/:/bin/sh\nx:x:10000:1000::/:/\n" + own},
		"its name":  {"sandbox:x:7:7::/x:/bin/sh\n", own},
		"odd lines": {"# comment\n\n+::::::\n1000\n", "# comment\n\n+::::::\n1000\n" + own},
	} {
		if got := string(Passwd([]byte(c.image), u)); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := string(Group([]byte("root:x:0:\nnode:x:1000:\nsandbox:x:5:\nstaff:x:50:node\n"),
		u)); got != "root:x:0:\nstaff:x:50:node\nsandbox:x:1000:\n" {
		t.Errorf("%q", got)
	}
}

// FuzzPasswd: with any image, the user has one line, the last, and no other line has its number.
func FuzzPasswd(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/:/\n"))
	f.Add([]byte(":\n::\n:::\n\x00"))
	f.Fuzz(func(t *testing.T, image []byte) {
		got := Passwd(image, sandbox.DefaultUser)
		if len(image) > 0 && !bytes.HasSuffix(got, []byte("sandbox:x:1000:1000::/home/sandbox:/bin/sh\n")) {
			t.Fatalf("%q", got)
		}
		own := 0
		for line := range strings.Lines(string(got)) {
			if fields := strings.Split(strings.TrimRight(line, "\n"), ":"); len(fields) > 2 && fields[2] == "1000" {
				own++
			}
		}
		if own != 1 {
			t.Fatalf("%d lines have the number: %q", own, got)
		}
	})
}
