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

// WorldHeader is how a server says in which world it lives.
const WorldHeader = "Sandbox-Run-World"

// worldVariables decide, beside executor.ToolchainVariables, what becomes of a run.
var worldVariables = []string{ImagesVariable, "SANDBOX_RUN_KIT", "SANDBOX_RUN_INIT", "XDG_CONFIG_HOME", "XDG_STATE_HOME"}

// World is a digest of what this process would run programs with: its user, the executable, the files it sees, and the variables that decide
// which toolchains, images and languages there are. Two processes of one world do the same with one request; so a command lets a
// server stand in for itself only if their worlds are one. full is the executable that serves.
func World(full string) string {
	return world(full, os.Getenv, os.Environ())
}

func world(full string, getenv func(string) string, environ []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "uid %d\ncores %d\n", os.Geteuid(), runtime.NumCPU())
	// Another mount namespace has other files behind the same names. Systems without them have one.
	space, _ := os.Readlink("/proc/self/ns/mnt")
	fmt.Fprintf(h, "files %s\n", space)
	for _, file := range []string{full, executor.LanguagesFile()} {
		fmt.Fprintf(h, "stamp %s\n", stampOf(file))
	}
	for _, name := range slices.Concat(executor.ToolchainVariables(), worldVariables) {
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

// stampOf tells a file from the one that takes its place, by whichever name it is looked at.
func stampOf(file string) string {
	st, err := os.Stat(file)
	if err != nil {
		return "none"
	}
	return fmt.Sprintf("%s %d %d", identity(st), st.Size(), st.ModTime().UnixNano())
}

// plainPath is a PATH in which every directory stands once, and those that are not there not at all: that /bin is another name for /usr/bin
// makes no difference.
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
