package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/oci"
)

// oci compares the whole command of the OCI backend with a bare `runc run` of a bundle with the same isolation.
func (s *environment) oci(ctx context.Context) (rows []bench.Row, err error) {
	const python = "/usr/bin/python3"
	hello := []string{python, "-c", `print("hello")`}
	runc, err := exec.LookPath("runc")
	if err == nil {
		_, err = os.Stat(python)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; try: scripts/deps.sh bench", err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandbox-run-bench-")
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if gone := removal.Tree(ctx, dir); err == nil {
			err = gone
		}
	}()
	if err := os.Chmod(dir, 0o711); err != nil { // the container's root is another user of the host
		return nil, err
	}
	bundle := filepath.Join(dir, "bundle")
	if err := os.Mkdir(bundle, 0o711); err != nil {
		return nil, err
	}
	if err := oci.Export(bundle, hello); err != nil {
		return nil, err
	}
	bare := s.program(runc, "--root", filepath.Join(dir, "state"), "run", "--bundle", bundle, "sandbox-run-bench")
	whole := s.program(s.cli, append([]string{"exec", "--backend", "oci", "--runtime", "runc", "--"}, hello...)...)
	ours, ref, err := bench.Pairs(ctx, min(3, s.warmup), s.probes, always(whole), always(bare))
	if err != nil {
		return nil, err
	}
	row := bench.Compare(strings.Join(hello, " ")+", --backend oci --runtime runc, the whole command", "runc run", ours, ref, 1.2)
	row.Note = "the same namespaces, ids, mounts, masks and filter; the bare one has no scratch disk, no limits and no supervisor"
	return []bench.Row{row}, nil
}
