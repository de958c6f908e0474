package python

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	requirementsFile = "requirements.txt"
	reportFile       = "report.json"
	// packagesDir is the directory of the packages below a layer, and of the layer in a sandbox.
	packagesDir = "site-packages"
	packagesAt  = language.ToolDir + "/" + packagesDir
)

// compileScript compiles what was installed. The compiled files hold for their sources whatever those files' times are. A file that is not
// for this version of Python, such as a template, stays as it is.
const compileScript = `import compileall, py_compile, sys
compileall.compile_dir(sys.argv[1], quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`

// packages describes the installation of what a program declares: with pip, from wheels. pip would execute a source distribution in order to
// read its name, so that there is no way to build one without a network.
func packages(j *language.Job) (*language.Packages, error) {
	o := &j.Request.Options
	if o.AllowInstallScripts {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "allow-install-scripts", "packages with wheels, or a directory vendored into the project",
			"Python packages are installed from wheels only: pip executes a source distribution while it still needs the network")
	}
	p := &language.Packages{Registry: "pypi"}
	var lines []string
	switch {
	case o.Lock != "":
		lock, err := language.ParseLock(o.Lock)
		if err != nil {
			return nil, err
		}
		if lock.Language != j.Language.Name || lock.Files[requirementsFile] == "" {
			return nil, sandbox.Invalid("lock", "it is a lock of %s, and the program is in %s", lock.Language, j.Language.Title)
		}
		for line := range strings.Lines(lock.Files[requirementsFile]) {
			r, err := parseRequirement(line)
			if err != nil {
				return nil, sandbox.Invalid("lock", "%w", err)
			}
			lines = append(lines, r)
		}
	default:
		for _, text := range o.Deps {
			r, err := parseRequirement(text)
			if err != nil {
				return nil, sandbox.Invalid("deps", "%w", err)
			}
			lines = append(lines, r)
		}
		if o.Install {
			declared, err := declaredRequirements(j)
			if err != nil {
				return nil, err
			}
			lines = append(lines, declared...)
		}
	}
	if len(lines) == 0 {
		return nil, nil
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	p.Locked = !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(l, " --hash=sha256:") })
	for _, l := range lines {
		name, _, _ := strings.Cut(l, " --hash=")
		p.Requirements = append(p.Requirements, name)
	}
	p.Files = []sandbox.File{{Path: path.Join(sandbox.WorkspaceDir, requirementsFile), Data: []byte(strings.Join(lines, "\n") + "\n")}}
	p.Env = map[string]string{"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": language.Index, "PYTHONDONTWRITEBYTECODE": "1"}
	target := path.Join(language.LayerDir, packagesDir)
	install := []string{
		j.Tool.Path, "-I", "-m", "pip", "--isolated", "--quiet", "install", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-compile",
		"--no-warn-script-location", "--root-user-action=ignore", "--progress-bar=off", "--only-binary=:all:", "--index-url=" + language.Index,
		"--trusted-host=registry.sandbox-run.internal", "--retries=2", "--timeout=60", "--target=" + target,
		"--report=" + path.Join(sandbox.WorkspaceDir, reportFile), "--requirement=" + requirementsFile,
	}
	if p.Locked {
		install = append(install, "--require-hashes", "--no-deps")
	}
	p.Steps = []language.Step{{Args: install}, {Args: []string{j.Tool.Path, "-I", "-c", compileScript, target}, Offline: true}}
	p.Locks, p.ReadLock = []string{reportFile}, readReport
	return p, nil
}

// readReport reads pip's report of an installation.
func readReport(files map[string][]byte) (*language.Lock, error) {
	var report struct {
		Install []struct {
			Metadata struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"metadata"`
			Download struct {
				URL     string `json:"url"`
				Archive struct {
					Hashes map[string]string `json:"hashes"`
				} `json:"archive_info"`
			} `json:"download_info"`
		} `json:"install"`
	}
	if err := json.Unmarshal(files[reportFile], &report); err != nil {
		return nil, fmt.Errorf("pip's report: %w", err)
	}
	lock := &language.Lock{}
	var lines []string
	for _, i := range report.Install {
		hash := i.Download.Archive.Hashes["sha256"]
		if i.Metadata.Name == "" || i.Metadata.Version == "" || hash == "" {
			return nil, errors.New("pip's report: a package has no name, version or hash")
		}
		line := fmt.Sprintf("%s==%s --hash=sha256:%s", normalName(i.Metadata.Name), i.Metadata.Version, hash)
		if _, err := parseRequirement(line); err != nil {
			return nil, fmt.Errorf("pip's report: %w", err)
		}
		lines = append(lines, line)
		lock.Packages = append(lock.Packages, language.Package{
			Name: normalName(i.Metadata.Name), Version: i.Metadata.Version, Hash: "sha256:" + hash, URL: i.Download.URL,
		})
	}
	slices.Sort(lines)
	lock.Files = map[string]string{requirementsFile: strings.Join(lines, "\n") + "\n"}
	return lock, nil
}

// normalName returns a package's name as registries compare it.
func normalName(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(name), "_", "-"), ".", "-")
}

// showPackages shows a layer. A file of the user's own site directory names it, so that every interpreter of this version finds the packages
// where it finds those of a machine; in a virtual environment, which has no such directory, PYTHONPATH does.
func showPackages(j *language.Job, program string) (dirs []string) {
	if j.Layer == nil {
		return nil
	}
	j.Mount(path.Join(j.Layer.Dir, packagesDir), packagesAt)
	if program != j.Tool.Path || j.Tool.Env["VIRTUAL_ENV"] != "" {
		return []string{packagesAt}
	}
	site := path.Join(sandbox.HomeDir, ".local/lib/python"+minorOf(j.Tool.Version), packagesDir)
	j.RunFiles = append(j.RunFiles, sandbox.File{Path: path.Join(site, driver.PackagesFile), Data: []byte("import site; site.addsitedir('" + packagesAt + "')\n")})
	return nil
}

// declaredRequirements returns the requirements of a script's own metadata (PEP 723), or else of the project.
func declaredRequirements(j *language.Job) ([]string, error) {
	if f := language.Find(j.Files, j.Entry); f != nil {
		text, err := f.Head(maxMetadata)
		if err != nil {
			return nil, err
		}
		if block, found, err := scriptMetadata(string(text)); err != nil {
			return nil, sandbox.Invalid("files", "%s: %w", f.Path, err)
		} else if found {
			return requirementsOf(j, f.Path, block, "")
		}
	}
	if language.Find(j.Files, requirementsFile) != nil {
		return readRequirements(j, requirementsFile, map[string]bool{})
	}
	if f := language.Find(j.Files, projectFile); f != nil {
		text, err := headOf(f)
		if err != nil {
			return nil, err
		}
		return requirementsOf(j, projectFile, string(text), "project")
	}
	return nil, nil
}

// maxMetadata bounds a file that is read for requirements, and maxIncluded how many files of requirements there are.
const (
	maxMetadata = 1 << 20
	maxIncluded = 100
)

// headOf returns the content of a file of requirements. The requirements behind a bound would be missing without a word.
func headOf(f *language.File) ([]byte, error) {
	text, err := f.Head(maxMetadata + 1)
	if err == nil && len(text) > maxMetadata {
		err = sandbox.Invalid("files", "%s: it is larger than %d bytes", f.Path, maxMetadata)
	}
	return text, err
}

// scriptMetadata returns the TOML of the block "script" in a source (PEP 723).
func scriptMetadata(source string) (text string, found bool, err error) {
	const begin, end = "# /// script", "# ///"
	var block []string
	inside := false
	for line := range strings.Lines(source) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case !inside && line == begin:
			if found {
				return "", false, errors.New("it has two blocks of script metadata")
			}
			inside, block = true, nil
		case inside && line == end:
			inside, found = false, true
			text = strings.Join(block, "\n")
		case inside && line == "#":
			block = append(block, "")
		case inside && strings.HasPrefix(line, "# "):
			block = append(block, line[2:])
		case inside:
			return "", false, errors.New("its block of script metadata does not end with # ///")
		}
	}
	if inside {
		return "", false, errors.New("its block of script metadata does not end with # ///")
	}
	return text, found, nil
}

// requirementsOf returns the requirements of a TOML document, and checks the version of Python that it demands.
func requirementsOf(j *language.Job, file, text, section string) ([]string, error) {
	if wanted := language.TOMLText(text, section, "requires-python"); wanted != "" {
		fits, err := versionFits(j.Tool.Version, wanted)
		if err != nil {
			return nil, sandbox.Invalid("files", "%s: requires-python: %w", file, err)
		}
		if !fits {
			return nil, sandbox.Errorf(sandbox.ErrInvalid, "files", "a Python that fits, first on PATH", "%s: it requires Python %s, and the interpreter is %s",
				file, wanted, j.Tool.Version)
		}
	}
	declared, _ := language.TOMLStrings(text, section, "dependencies")
	for i, d := range declared {
		r, err := parseRequirement(d)
		if err != nil {
			return nil, sandbox.Invalid("files", "%s: dependencies: %w", file, err)
		}
		declared[i] = r
	}
	return declared, nil
}

// readRequirements reads a requirements file and those that it names, each once. Options that lead pip elsewhere are refused: registries.yaml
// names the registries.
func readRequirements(j *language.Job, name string, read map[string]bool) (all []string, err error) {
	if reading, found := read[name]; reading {
		return nil, sandbox.Invalid("files", "%s: it leads to itself", name)
	} else if found {
		return nil, nil
	}
	read[name] = true // until its end
	defer func() { read[name] = false }()
	if len(read) > maxIncluded {
		return nil, sandbox.Invalid("files", "%s: it is one of more than %d files of requirements", name, maxIncluded)
	}
	f := language.Find(j.Files, name)
	if f == nil {
		return nil, sandbox.Invalid("files", "%s: it does not exist", name)
	}
	text, err := headOf(f)
	if err != nil {
		return nil, err
	}
	joined := strings.ReplaceAll(strings.ReplaceAll(string(text), "\r\n", "\n"), "\\\n", " ")
	number := 0
	for line := range strings.Lines(joined) {
		number++
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		line, _, _ = strings.Cut(line, " #")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		option, value, _ := strings.Cut(strings.ReplaceAll(line, "=", " "), " ")
		switch option {
		case "-r", "--requirement":
			more, err := readRequirements(j, path.Join(path.Dir(name), strings.TrimSpace(value)), read)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
			continue
		case "--only-binary", "--require-hashes", "--prefer-binary":
			continue // it is so in any case
		}
		r, err := parseRequirement(line)
		if err != nil {
			return nil, sandbox.Invalid("files", "%s, line %d: %w", name, number, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// parseRequirement checks a requirement (PEP 508) with its hashes, and returns it in one form.
func parseRequirement(text string) (string, error) {
	wrong := func(why string) (string, error) {
		return "", fmt.Errorf("%.100q %s; write it like requests==2.31", text, why)
	}
	if strings.ContainsAny(strings.TrimSpace(text), "\r\n") {
		return wrong("has several lines")
	}
	words := strings.Fields(text)
	var hashes []string
	for len(words) > 0 && strings.HasPrefix(words[len(words)-1], "--hash=sha256:") {
		hash := words[len(words)-1]
		if digits := strings.TrimPrefix(hash, "--hash=sha256:"); len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
			return wrong("has a wrong digest")
		}
		hashes, words = append(hashes, hash), words[:len(words)-1]
	}
	rest := strings.Join(words, " ")
	switch {
	case strings.HasPrefix(rest, "-"):
		return wrong("is an option, and registries.yaml names the registries")
	case strings.Contains(rest, "://") || strings.Contains(rest, " @ ") || strings.Contains(rest, "@"):
		return wrong("names an address; packages come from the registry only")
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return !isNameRune(r) })
	if end < 0 {
		end = len(rest)
	}
	name := rest[:end]
	if name == "" || !isAlphanumeric(rune(name[0])) || !isAlphanumeric(rune(name[len(name)-1])) || len(name) > 200 {
		return wrong("is not the name of a package")
	}
	rest, marker, _ := strings.Cut(rest[end:], ";")
	rest = strings.TrimSpace(rest)
	extras := ""
	if strings.HasPrefix(rest, "[") {
		inner, after, closed := strings.Cut(rest[1:], "]")
		if !closed || strings.ContainsFunc(inner, func(r rune) bool { return !isNameRune(r) && r != ',' && r != ' ' }) {
			return wrong("has wrong extras")
		}
		extras, rest = "["+strings.ReplaceAll(inner, " ", "")+"]", strings.TrimSpace(after)
	}
	rest = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(rest, "("), ")"))
	var versions []string
	for part := range strings.SplitSeq(rest, ",") {
		part = strings.ReplaceAll(part, " ", "")
		if part == "" && rest == "" {
			break
		}
		op := part[:len(part)-len(strings.TrimLeft(part, "<>=!~"))]
		version := part[len(op):]
		if !slices.Contains([]string{"==", "===", ">=", "<=", ">", "<", "!=", "~="}, op) || version == "" ||
			strings.ContainsFunc(version, func(r rune) bool { return !isNameRune(r) && !strings.ContainsRune("+!*", r) }) {
			return wrong("has a wrong version")
		}
		versions = append(versions, part)
	}
	made := normalName(name) + extras + strings.Join(versions, ",")
	if marker = strings.TrimSpace(marker); marker != "" {
		if strings.ContainsFunc(marker, func(r rune) bool {
			return !isNameRune(r) && !strings.ContainsRune(" <>=!~'\"()*+,", r)
		}) || strings.HasPrefix(marker, "-") || strings.Contains(marker, " -") { // pip reads the rest of such a line as options, even between quotes
			return wrong("has a wrong marker")
		}
		made += "; " + marker
	}
	slices.Sort(hashes)
	return strings.Join(append([]string{made}, hashes...), " "), nil
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func isNameRune(r rune) bool { return isAlphanumeric(r) || strings.ContainsRune("._-", r) }

// versionFits reports whether a version satisfies a list such as >=3.9,<4.
func versionFits(version, wanted string) (bool, error) {
	for part := range strings.SplitSeq(wanted, ",") {
		part = strings.ReplaceAll(part, " ", "")
		op := part[:len(part)-len(strings.TrimLeft(part, "<>=!~"))]
		text, wild := strings.CutSuffix(part[len(op):], ".*")
		bound, err := versionNumbers(text)
		if err != nil {
			return false, fmt.Errorf("%q: %w", part, err)
		}
		own, err := versionNumbers(version)
		if err != nil {
			return false, err
		}
		if wild || op == "~=" {
			length := len(bound)
			if op == "~=" {
				length--
			}
			same := slices.Equal(pad(own, 3)[:min(length, 3)], pad(bound, 3)[:min(length, 3)])
			if ok := same && (op != "~=" || slices.Compare(pad(own, 3), pad(bound, 3)) >= 0); ok == (op == "!=") {
				return false, nil
			}
			continue
		}
		order := slices.Compare(pad(own, 3), pad(bound, 3))
		ok, known := map[string]bool{"==": order == 0, "===": order == 0, "!=": order != 0, ">=": order >= 0, "<=": order <= 0, ">": order > 0, "<": order < 0}[op]
		if !known {
			return false, fmt.Errorf("%q has no operator; write it like >=3.9", part)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// versionNumbers returns the numbers of a version.
func versionNumbers(text string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(text, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil, errors.New("it is not a version of numbers")
		}
		all = append(all, n)
	}
	return all, nil
}

func pad(numbers []int, length int) []int {
	for len(numbers) < length {
		numbers = append(numbers, 0)
	}
	return numbers
}
