package java

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/coordinate"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// lockFile has a line for each jar, in the order of the class path: its coordinate and sha256:HEX.
	lockFile = "maven.lock"
	// reportFile is such a list with the URL of each jar, made by the kit.
	reportFile = "maven.report"
	// jarsDir is the directory of the jars below a layer, and jarsAt that of the layer in a sandbox.
	jarsDir = "jars"
	jarsAt  = language.ToolDir + "/" + jarsDir
	// maxJars bounds the jars of a program, as the kit does.
	maxJars = 1000
)

// packages describes the installation of the jars that a program declares: with the kit, from a Maven repository. No code of the jars runs.
func packages(j *language.Job) (*language.Packages, error) {
	o := &j.Request.Options
	p := &language.Packages{Registry: "maven", Locks: []string{reportFile}, ReadLock: readReport}
	fetch := []string{
		language.KitPath, "maven", "--index", language.Index, "--out", path.Join(language.LayerDir, jarsDir),
		"--report", path.Join(sandbox.WorkspaceDir, reportFile),
	}
	if o.Lock != "" {
		lock, err := language.ParseLock(o.Lock)
		if err != nil {
			return nil, err
		}
		if lock.Language != j.Language.Name || lock.Files[lockFile] == "" {
			return nil, sandbox.Invalid("lock", "it is a lock of %s, and the program is in %s", lock.Language, j.Language.Title)
		}
		jars, err := readLock(lock.Files[lockFile])
		if err != nil {
			return nil, sandbox.Invalid("lock", "%w", err)
		}
		for _, c := range jars {
			p.Requirements = append(p.Requirements, c.String())
		}
		slices.Sort(p.Requirements)
		at := path.Join(sandbox.WorkspaceDir, lockFile)
		p.Locked, p.Files = true, []sandbox.File{{Path: at, Data: []byte(lock.Files[lockFile])}}
		p.Steps = []language.Step{{Args: append(fetch, "--lock", at)}}
		return p, nil
	}
	declared, err := declaredJars(j)
	if err != nil || len(declared) == 0 {
		return nil, err
	}
	p.Requirements = declared
	p.Steps = []language.Step{{Args: append(fetch, declared...)}}
	return p, nil
}

// declaredJars returns the coordinates of the request and, if it asks for them, of the sources.
func declaredJars(j *language.Job) ([]string, error) {
	o := &j.Request.Options
	all, versions := map[coordinate.Coordinate]bool{}, map[string]string{}
	add := func(field, where, text string) error {
		c, err := coordinate.Parse(text)
		if err != nil {
			return sandbox.Invalid(field, "%s%w", where, err)
		}
		if other, found := versions[c.Name()]; found && other != c.Version {
			return sandbox.Invalid(field, "%s%s is declared with two versions, %s and %s", where, c.Name(), other, c.Version)
		}
		if all[c], versions[c.Name()] = true, c.Version; len(all) > maxJars {
			return sandbox.Invalid(field, "%smore than %d jars are declared", where, maxJars)
		}
		return nil
	}
	for _, text := range o.Deps {
		if err := add("deps", "", text); err != nil {
			return nil, err
		}
	}
	for i := range j.Files {
		f := &j.Files[i]
		if !o.Install || len(j.Files) > 1 && (path.Ext(f.Path) != ".java" || !isCompiled(j, f.Path)) {
			continue
		}
		text, err := f.Content()
		if err != nil {
			return nil, err
		}
		for d, line := range sourceJars(string(text)) {
			if err := add("files", fmt.Sprintf("%s, line %d: ", f.Path, line), d); err != nil {
				return nil, err
			}
		}
	}
	if build := language.FirstFile(j.Files, ".", j.Language.Projects); o.Install && len(all) == 0 && build != "" {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "install",
			"--deps group:artifact:version,… or lines //DEPS group:artifact:version in a source",
			"%s is not read: sandbox-run resolves no projects of Maven or Gradle", build)
	}
	var texts []string
	for c := range all {
		texts = append(texts, c.String())
	}
	slices.Sort(texts)
	return texts, nil
}

// sourceJars yields what the lines //DEPS of a source name, as jbang has them, with the number of the line.
func sourceJars(source string) func(yield func(text string, line int) bool) {
	return func(yield func(string, int) bool) {
		number := 0
		for line := range strings.Lines(source) {
			number++
			rest, found := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "//DEPS ")
			if !found {
				continue
			}
			rest, _, _ = strings.Cut(rest, " //")
			for _, text := range strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" \t,;", r) }) {
				if !yield(text, number) {
					return
				}
			}
		}
	}
}

// readLock reads a list of jars.
func readLock(text string) (jars []coordinate.Coordinate, err error) {
	for line := range strings.Lines(text) {
		c, _, url, err := readLine(strings.TrimSuffix(line, "\n"))
		switch {
		case err != nil:
			return nil, err
		case url != "":
			return nil, fmt.Errorf("the line of %s has more than a coordinate and a digest", c)
		case slices.Contains(jars, c):
			return nil, fmt.Errorf("it has %s twice", c)
		case len(jars) == maxJars:
			return nil, fmt.Errorf("it has more than %d jars", maxJars)
		}
		jars = append(jars, c)
	}
	return jars, nil
}

// readLine reads a line of a list.
func readLine(line string) (c coordinate.Coordinate, hash, url string, err error) {
	text, rest, _ := strings.Cut(line, " ")
	hash, url, _ = strings.Cut(rest, " ")
	digits, found := strings.CutPrefix(hash, "sha256:")
	if !found || len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		return c, "", "", fmt.Errorf("the line %.200q has no sha256:HEX", line)
	}
	c, err = coordinate.Parse(text)
	return c, hash, url, err
}

// readReport reads the kit's report of an installation.
func readReport(files map[string][]byte) (*language.Lock, error) {
	text, found := files[reportFile]
	if !found {
		return nil, errors.New("the kit has made no report")
	}
	lock := &language.Lock{}
	var lines strings.Builder
	for line := range strings.Lines(string(text)) {
		c, hash, url, err := readLine(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("the kit's report: %w", err)
		}
		lines.WriteString(c.String() + " " + hash + "\n")
		lock.Packages = append(lock.Packages, language.Package{Name: c.Name(), Version: c.Version, Hash: hash, URL: url})
	}
	lock.Files = map[string]string{lockFile: lines.String()}
	return lock, nil
}

// showJars shows a layer, and returns the paths of its jars in the order of the class path.
func showJars(j *language.Job) ([]string, error) {
	if j.Layer == nil {
		return nil, nil
	}
	jars, err := readLock(j.Layer.Lock.Files[lockFile])
	if err != nil {
		return nil, &sandbox.Error{Op: "read the lock of layer " + j.Layer.ID, Err: err}
	}
	paths := coordinate.Files(jars)
	for i := range paths {
		paths[i] = path.Join(jarsAt, paths[i])
	}
	j.Mount(path.Join(j.Layer.Dir, jarsDir), jarsAt)
	if build := language.FirstFile(j.Files, ".", j.Language.Projects); build != "" && j.Request.Options.Install {
		j.Plan.Notes = append(j.Plan.Notes, build+" is not read; the jars are those of --deps and of //DEPS lines")
	}
	return paths, nil
}
