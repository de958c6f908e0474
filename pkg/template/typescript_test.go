package template

import (
	"path/filepath"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

// stripTypes makes one JavaScript file of TypeScript, as the executor does; traces keep the
// user's names and lines.
func stripTypes(t *testing.T, dir string, r Rendered) {
	t.Helper()
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{filepath.Join(dir, r.Entry)}, Outfile: filepath.Join(dir, "out.mjs"),
		Bundle: true, Write: true, Platform: api.PlatformNode, Format: api.FormatESModule, Sourcemap: api.SourceMapInline,
	})
	if len(result.Errors) > 0 {
		t.Fatalf("%+v", result.Errors)
	}
}
