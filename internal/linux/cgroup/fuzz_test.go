//go:build linux

package cgroup

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzRecord: of the recorded roots of a dead supervisor, only `sandbox-run` directories are touched.
func FuzzRecord(f *testing.F) {
	f.Add("/sys/fs/cgroup/memory/sandbox-run\n/sys/fs/cgroup/unified/sandbox-run")
	f.Add("/\nsandbox-run\n/../sandbox-run\n/tmp/sandbox-run")
	f.Add("/sys/fs/cgroup/../../../etc/sandbox-run\n\x00")
	f.Fuzz(func(t *testing.T, record string) {
		roots := strings.Split(record, "\n")
		tree, refused := At(roots)
		defer tree.Close()
		if len(tree.hierarchies)+len(refused) > len(roots) {
			t.Errorf("%d roots, %d refused, %d taken", len(roots), len(refused), len(tree.hierarchies))
		}
		for _, h := range tree.hierarchies {
			if !filepath.IsAbs(h.place) || filepath.Clean(h.place) != h.place || !strings.Contains(record, h.place+"/"+rootName) {
				t.Errorf("%q lets %q be touched", record, h.place)
			}
		}
		for _, name := range roots {
			if g := tree.Group(name); g.err == nil && (strings.Contains("/"+name+"/", "/../") || strings.HasPrefix(name, "/") || name == "") {
				t.Errorf("%q is a group", name)
			}
		}
	})
}
