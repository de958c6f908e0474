package apitest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Real makes an executor over the native backend, with a compile cache of its own and the given additional languages.
func Real(t testing.TB, languages ...*executor.Language) (*executor.Executor, *sandbox.Manager) {
	t.Helper()
	testenv.NeedRoot(t)
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		_ = os.Setenv("SANDBOX_RUN_INIT", filepath.Join(dir, "sandbox-init"))
	}
	dir, err := os.MkdirTemp("/var/tmp", "api-test-")
	Must(t, err)
	backend, err := native.New(native.Options{CacheDir: filepath.Join(dir, "disks")})
	Must(t, err)
	manager := sandbox.NewManager(backend, sandbox.Options{})
	t.Cleanup(func() {
		if err := manager.Close(); err != nil {
			t.Error(err)
		}
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir) //nolint:forbidigo // a directory of the test's own, that no sandbox has seen
	})
	return executor.New(manager, executor.Options{
		Toolchains: &toolchain.Finder{Store: filepath.Join(dir, "toolchains")}, Cache: &executor.Cache{Dir: filepath.Join(dir, "compiled")},
		WarmDir: filepath.Join(dir, "warm"), Languages: languages,
	}), manager
}
