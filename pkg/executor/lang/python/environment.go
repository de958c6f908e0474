package python

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// environment is a project's own virtual environment.
type environment struct {
	dir    string // relative to the program
	source string // directory of the host with its packages; "": they are among the program's files
	system bool   // programs in it see the interpreter's own packages, too
}

// inspected is the result of inspect.
type inspected struct {
	env    *environment // nil without one that fits
	unused string       // why the project's environment is not used; "": it has none, or it is used
}

const environmentFile = "pyvenv.cfg"

// environmentDirs are the usual names of a project's virtual environment.
var environmentDirs = []string{".venv", "venv", "env"}

// EnvironmentIn returns the name of the virtual environment in a directory of this machine; "" for none.
func EnvironmentIn(dir string) string {
	for _, name := range environmentDirs {
		if text, _ := readEnvironment(&language.Job{HostDir: dir}, name); text != "" {
			return name
		}
	}
	return ""
}

// inspect finds the virtual environment of a project. It reads two names of the project's directory, follows no link and runs nothing: the
// interpreter stays the chosen one.
func inspect(_ context.Context, j *language.Job) error {
	found := inspected{}
	j.Inspected = &found
	if j.Tool.Env["VIRTUAL_ENV"] != "" || j.Request.Env["VIRTUAL_ENV"] != "" {
		return nil // the user has chosen one
	}
	for _, dir := range environmentDirs {
		text, source := readEnvironment(j, dir)
		if text == "" {
			continue
		}
		facts := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(line, "=")
			facts[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
		version := facts["version"]
		if version == "" {
			version = facts["version_info"] // as virtualenv and uv write it
		}
		packages := path.Join("lib", "python"+minorOf(j.Tool.Version), "site-packages")
		switch {
		case j.Image != nil:
			found.unused = fmt.Sprintf("the virtual environment %s: its packages are for this machine, not for the image", dir)
		case minorOf(version) != minorOf(j.Tool.Version):
			found.unused = fmt.Sprintf("the virtual environment %s: it is for Python %s, and the interpreter is %s; put that Python first on PATH, "+
				"or make the environment again", dir, version, j.Tool.Version)
		case source == "" && language.HasDirectory(j.Files, path.Join(dir, packages)):
			found.env = &environment{dir: dir}
		case source != "" && isDirectory(source, packages):
			found.env = &environment{dir: dir, source: filepath.Join(source, packages)}
		default:
			found.unused = fmt.Sprintf("the virtual environment %s: it has no %s", dir, packages)
		}
		if found.env != nil {
			found.env.system = facts["include-system-site-packages"] == "true"
		}
		return nil
	}
	return nil
}

// readEnvironment returns the description of an environment in a directory of the program, and its directory on the host unless it is
// among the program's files.
func readEnvironment(j *language.Job, dir string) (text, source string) {
	if f := language.Find(j.Files, path.Join(dir, environmentFile)); f != nil {
		data, _ := f.Head(maxDescription) // Python reports a file that it can not read
		return string(data), ""
	}
	if j.HostDir == "" || !isDirectory(j.HostDir, dir) {
		return "", ""
	}
	name := filepath.Join(j.HostDir, dir, environmentFile)
	if st, err := os.Lstat(name); err != nil || !st.Mode().IsRegular() || st.Size() > maxDescription {
		return "", ""
	}
	data, _ := os.ReadFile(name)
	return string(data), filepath.Join(j.HostDir, dir)
}

// maxDescription bounds the description of an environment.
const maxDescription = 64 << 10

// isDirectory reports whether a path below a directory is a directory, without links on the path.
func isDirectory(top, rel string) bool {
	for _, name := range strings.Split(rel, "/") {
		top = filepath.Join(top, name)
		if st, err := os.Lstat(top); err != nil || !st.IsDir() {
			return false
		}
	}
	return true
}

// minorOf returns the first two parts of a version: packages are for one of those.
func minorOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}

// userBin is the directory of the interpreter's other names, where PATH leads first.
const userBin = sandbox.HomeDir + "/.local/bin"

// setUp gives the chosen interpreter the names python and python3, in the project's environment if there is one. It returns the path of
// the interpreter, and the directory of its commands.
func setUp(j *language.Job) (program, bin string) {
	program, bin = j.Tool.Path, userBin
	found, _ := j.Inspected.(*inspected)
	switch {
	case found != nil && found.unused != "":
		j.Plan.Notes = append(j.Plan.Notes, language.UnusedNote+found.unused)
	case found != nil && found.env != nil && !overlapsVolume(j, j.Inside(found.env.dir)):
		home := j.Inside(found.env.dir)
		bin = path.Join(home, "bin")
		program = path.Join(bin, "python3")
		text := fmt.Sprintf("home = %s\ninclude-system-site-packages = %v\nversion = %s\n",
			path.Dir(j.Tool.Path), found.env.system, j.Tool.Version)
		j.RunFiles = append(j.RunFiles, sandbox.File{Path: path.Join(home, environmentFile), Data: []byte(text)})
		if found.env.source != "" {
			target := path.Join(home, "lib", "python"+minorOf(j.Tool.Version), "site-packages")
			j.Plan.Spec.Volumes = append(j.Plan.Spec.Volumes, sandbox.Volume{Source: found.env.source, Target: target})
		}
		j.Setenv("VIRTUAL_ENV", home)
	}
	switch {
	case j.Image != nil || overlapsVolume(j, bin): // has names of its own
		return program, bin
	case j.Tool.Env["VIRTUAL_ENV"] != "": // an interpreter is in an environment only by its name there
		j.Setenv("PATH", path.Dir(j.Tool.Path)+":"+sandbox.SearchPath)
		return program, bin
	}
	for _, name := range []string{"python", "python3"} {
		j.RunFiles = append(j.RunFiles, sandbox.File{Path: path.Join(bin, name), Link: j.Tool.Path})
	}
	j.Setenv("PATH", bin+":"+sandbox.SearchPath)
	return program, bin
}

// overlapsVolume reports whether a volume of the request is at, above or below a directory, where no files can be made then.
func overlapsVolume(j *language.Job, dir string) bool {
	return slices.ContainsFunc(j.Plan.Spec.Volumes, func(v sandbox.Volume) bool {
		return language.IsBelow(v.Target, dir) || language.IsBelow(dir, v.Target)
	})
}
