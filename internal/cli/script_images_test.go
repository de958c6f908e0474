package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/hostimage"
	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// preparedImages makes a store with two images of this machine's files: test/box, which has a shell, an entrypoint and a configuration,
// and test/python. It is made once, in a directory that is removed after the tests.
var preparedImages = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.Getenv("XDG_DATA_HOME"), "prepared-images")
	store, err := image.Open(dir)
	if err != nil {
		return "", err
	}
	box := hostimage.Contents{
		Programs: []string{"/usr/bin/busybox"},
		Files: map[string]string{
			"bin": "-> usr/bin", "usr/bin/sh": "-> busybox", "usr/bin/cat": "-> busybox", "usr/bin/id": "-> busybox",
			"usr/bin/pwd": "-> busybox", "usr/bin/env": "-> busybox", "usr/bin/touch": "-> busybox",
			"opt/app/run": "#!/bin/sh\necho run \"$@\"\n", "opt/app/data": "data of the image\n",
			"opt/lisp/bin/lisp": "#!/bin/sh\necho lisp of the image: \"$@\"\n",
		},
		Config: image.Config{
			Env: []string{"PATH=/opt/lisp/bin:/usr/bin", "FROM_IMAGE=yes", "LD_PRELOAD=/x.so", "HOME=/root"}, Workdir: "/opt/app",
			Entrypoint: []string{"/opt/app/run"}, Cmd: []string{"of", "image"}, User: "root",
		},
	}
	if _, err := hostimage.Add(context.Background(), store, "test/box", box); err != nil {
		return "", err
	}
	python := hostimage.Python()
	if python == nil {
		return "", errors.New("needs the distribution's Python (package python3)")
	}
	_, err = hostimage.Add(context.Background(), store, "test/python", *python)
	return dir, err
})

// storeImages is the script command stores: it copies the prepared images into the script's store.
func storeImages(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: stores")
	}
	dir, err := preparedImages()
	ts.Check(err)
	ts.Check(exec.Command("cp", "-a", dir, ts.Getenv(app.ImagesVariable)).Run())
}
