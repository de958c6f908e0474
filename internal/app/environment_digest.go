package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// EnvironmentHeader is the response header with a server's EnvironmentDigest.
const EnvironmentHeader = "Sandbox-Run-World"

// digestVariables are the variables beside executor.ToolchainVariables that change the outcome of a run.
var digestVariables = []string{ImagesVariable, "SANDBOX_RUN_KIT", "SANDBOX_RUN_INIT", "XDG_CONFIG_HOME", "XDG_STATE_HOME"}

// EnvironmentDigest returns a digest of everything in this process's environment that changes the outcome of a run: its user, the
// executable, the files that it sees, and the variables that select toolchains, images and languages. Two processes with the same digest
// treat a request alike, so the command line hands a run to a local server only if their digests are equal. full is the path of the full
// executable.
func EnvironmentDigest(full string) string {
	return environmentDigest(full, os.Getenv, os.Environ())
}

func environmentDigest(full string, getenv func(string) string, environ []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "uid %d\ncores %d\n", os.Geteuid(), runtime.NumCPU())
	// In another mount namespace the same names refer to other files. Systems without mount namespaces have an empty value.
	space, _ := os.Readlink("/proc/self/ns/mnt")
	fmt.Fprintf(h, "files %s\n", space)
	for _, file := range []string{full, executor.LanguagesFile()} {
		fmt.Fprintf(h, "stamp %s\n", stampOf(file))
	}
	for _, name := range slices.Concat(executor.ToolchainVariables(), digestVariables) {
		value := getenv(name)
		if name == "PATH" {
			value = plainPath(value)
		}
		fmt.Fprintf(h, "%s=%q\n", name, value)
	}
	var images []string
	for _, entry := range environ {
		if strings.HasPrefix(entry, imageVariable) && !strings.HasSuffix(entry, "=") {
			images = append(images, entry)
		}
	}
	slices.Sort(images)
	fmt.Fprintf(h, "images %q\n", images)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// stampOf identifies a file by its inode, size and time, so that its replacement differs and its other names do not.
func stampOf(file string) string {
	st, err := os.Stat(file)
	if err != nil {
		return "none"
	}
	return fmt.Sprintf("%s %d %d", identity(st), st.Size(), st.ModTime().UnixNano())
}

// plainPath returns the identities of the directories of a PATH, each once and without missing ones: /bin as a link to /usr/bin makes no
// difference.
func plainPath(path string) string {
	var seen []os.FileInfo
	var kept []string
	for _, dir := range filepath.SplitList(path) {
		st, err := os.Stat(dir)
		if err != nil || !filepath.IsAbs(dir) || slices.ContainsFunc(seen, func(other os.FileInfo) bool { return os.SameFile(st, other) }) {
			continue
		}
		seen = append(seen, st)
		kept = append(kept, identity(st))
	}
	return strings.Join(kept, ":")
}
