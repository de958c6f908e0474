package language

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestImageEnv(t *testing.T) {
	got := imageEnv([]string{
		"PATH=/a:/b", "LANG=de", "EMPTY=", "A=b=c", "LD_LIBRARY_PATH=/opt/lib", // these are honoured
		"LD_PRELOAD=/x.so", "LD_AUDIT=/x.so", "GLIBC_TUNABLES=x", "HOME=/root", "USER=root", "LOGNAME=root", "TMPDIR=/x", "HOSTNAME=h", "PWD=/",
		"SHELL=/bin/x",
		"XDG_CACHE_HOME=/x", "SANDBOX_RUN_KIT=/x", "TERM=x", "=x", "nothing", "N\x00L=x", "V=\x00",
		"LONG=" + strings.Repeat("x", maxImageVariable),
	})
	if want := map[string]string{"PATH": "/a:/b", "LANG": "de", "EMPTY": "", "A": "b=c", "LD_LIBRARY_PATH": "/opt/lib"}; !maps.Equal(got,
		want) {
		t.Errorf("%v", got)
	}
	var many []string
	for i := range 1000 {
		many = append(many, strings.Repeat("x", i+1)+"=")
	}
	if n := len(imageEnv(many)); n != maxImageVariables {
		t.Errorf("%d variables", n)
	}
}

// FuzzImageEnv: whatever an image says, its sandboxes can be made, and have their own say.
func FuzzImageEnv(f *testing.F) {
	f.Add("PATH=/x\nLD_PRELOAD=y")
	f.Add("=\n==\n\x00\nHOME")
	f.Fuzz(func(t *testing.T, text string) {
		for k, v := range imageEnv(strings.Split(text, "\n")) {
			if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) || slices.Contains(withheld(), k) || k == "LD_PRELOAD" {
				t.Errorf("%q=%q", k, v)
			}
		}
	})
}

func TestImageCommand(t *testing.T) {
	text := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		entrypoint, cmd []string
		own             *string
		args            []string
		want            string
	}{
		"its own":            {[]string{"/e", "x"}, []string{"c"}, nil, nil, "/e x c"},
		"command":            {nil, []string{"c", "d"}, nil, nil, "c d"},
		"arguments":          {[]string{"/e"}, []string{"c"}, nil, []string{"a", "b"}, "/e a b"},
		"no entrypoint":      {nil, []string{"c"}, nil, []string{"a"}, "a"},
		"another":            {[]string{"/e"}, []string{"c"}, text("/o"), nil, "/o"},
		"another, arguments": {[]string{"/e"}, []string{"c"}, text("/o"), []string{"a"}, "/o a"},
		"none of it":         {[]string{"/e"}, []string{"c"}, text(""), []string{"a"}, "a"},
		"nothing":            {nil, nil, nil, nil, ""},
		"nothing left":       {[]string{"/e"}, []string{"c"}, text(""), nil, ""},
	} {
		i := &Image{ImageInfo: sandbox.ImageInfo{Entrypoint: c.entrypoint, Cmd: c.cmd}}
		got, err := i.Command(c.own, c.args)
		if strings.Join(got, " ") != c.want || (err != nil) != (c.want == "") || err != nil && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
