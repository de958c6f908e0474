package golang

import (
	"errors"
	"strings"
	"testing"
)

func TestReadDirect(t *testing.T) {
	said := `WORK=/tmp/go-build1
mkdir -p $WORK/b001/
cat >/tmp/go-build1/b001/importcfg << 'EOF' # internal
# import config
packagefile fmt=/cache/ab/abcd-d
EOF
cd /x
/host/go/pkg/tool/linux_amd64/compile -o $WORK/b001/_pkg_.a -trimpath "$WORK/b001=>" -p main -lang=go1.26 -complete ` +
		`-buildid a/a -goversion go1.26.8 -c=2 -nolocalimports -importcfg $WORK/b001/importcfg -pack ./main.go
cat >/tmp/go-build1/b001/importcfg.link << 'EOF' # internal
packagefile command-line-arguments=$WORK/b001/_pkg_.a
packagefile fmt=/cache/ab/abcd-d
modinfo "0w\xaf path\tcommand-line-arguments\n"
EOF
GOROOT='/host/go' /host/go/pkg/tool/linux_amd64/link -o $WORK/b001/exe/a.out -importcfg $WORK/b001/importcfg.link ` +
		`-buildmode=exe -buildid=x/y -w -extld=gcc $WORK/b001/_pkg_.a
`
	d, err := readDirect(said, "/cache", "/host/go", "/go")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(d.compile,
		" "); got != "/go/pkg/tool/linux_amd64/compile -p main -lang=go1.26 -complete -goversion go1.26.8 -c=2 -nolocalimports" {
		t.Error(got)
	}
	if got := strings.Join(d.link, " "); got != "/go/pkg/tool/linux_amd64/link -buildmode=exe -w -extld=gcc" {
		t.Error(got)
	}
	if d.imports != "packagefile fmt="+goCacheDir+"/ab/abcd-d\n" ||
		d.links != d.imports+"modinfo \"0w\\xaf path\\tcommand-line-arguments\\n\"\n" {
		t.Errorf("%q %q", d.imports, d.links)
	}
	for what, other := range map[string]string{
		"a flag that a shell reads":   strings.Replace(said, "-extld=gcc", "-extld='g cc'", 1),
		"a package from elsewhere":    strings.ReplaceAll(said, "/cache/ab", "/elsewhere/ab"),
		"no linker":                   said[:strings.Index(said, "GOROOT=")],
		"a compiler of another kind":  strings.Replace(said, "-nolocalimports ", "", 1),
		"nothing that we know at all": "go: something else\n",
	} {
		if _, err := readDirect(other, "/cache", "/host/go", "/go"); !errors.Is(err, errDirect) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestIsDirect(t *testing.T) {
	whole := []byte(goHello)
	for name, want := range map[string]bool{"main.go": true, "my-tool.go": true, "x_windows.go": false, "sub/x.go": false, "-x.go": false,
		".go": false, "a b.go": false, "x": false} {
		if isDirect(name, whole, nil) != want {
			t.Errorf("%s: not %v", name, want)
		}
	}
	for _, k := range []string{"GOARCH", "GOFLAGS", "CGO_ENABLED"} {
		if isDirect("main.go", whole, map[string]string{k: ""}) {
			t.Error(k)
		}
	}
	if !isDirect("main.go", whole, map[string]string{"A": "b"}) {
		t.Error("a variable of the program's own")
	}
}
