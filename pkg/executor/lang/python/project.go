package python

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

const projectFile = "pyproject.toml"

// script is a command that a project defines: a function of a module.
type script struct{ name, module, function string }

// findEntry returns the name of a script that pyproject.toml defines: the one that was asked for; else the only one, or the one with the
// name of the project.
func findEntry(files []language.File, asked string) string {
	project, scripts := readProject(files)
	if asked == "" && len(scripts) == 1 {
		return scripts[0].name
	}
	if asked == "" {
		asked = project
	}
	if slices.ContainsFunc(scripts, func(s script) bool { return s.name == asked }) {
		return asked
	}
	return ""
}

// readProject reads the few lines of a pyproject.toml that matter here, one key per line, as is usual.
func readProject(files []language.File) (name string, scripts []script) {
	f := language.Find(files, projectFile)
	if f == nil {
		return "", nil
	}
	text, err := f.Head(1 << 20)
	if err != nil {
		return "", nil
	}
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			header, _, _ := strings.Cut(line, "#")
			section = strings.Join(strings.Fields(header), "")
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.Trim(strings.TrimSpace(key), `"'`), language.TOMLString(value)
		switch section {
		case "[project]", "[tool.poetry]":
			if key == "name" {
				name = value
			}
		case "[project.scripts]", "[tool.poetry.scripts]":
			value, _, _ = strings.Cut(value, "[") // extras
			module, function, ok := strings.Cut(strings.TrimSpace(value), ":")
			if ok && isModule(module) && isModule(function) && language.CheckName("", key) == nil && !strings.Contains(key, "/") {
				scripts = append(scripts, script{key, module, function})
			}
		}
	}
	return name, scripts
}

// scriptOf returns the script that is the entry; nil if the entry is something else.
func scriptOf(j *language.Job) *script {
	if language.Find(j.Files, j.Entry) != nil || j.Language.Index(j.Files, j.Entry) != "" {
		return nil
	}
	_, scripts := readProject(j.Files)
	if i := slices.IndexFunc(scripts, func(s script) bool { return s.name == j.Entry }); i >= 0 {
		return &scripts[i]
	}
	return nil
}

// text returns the program that installers write for a script.
func (s *script) text(interpreter string) []byte {
	first, _, _ := strings.Cut(s.function, ".")
	return fmt.Appendf(nil, "#!%s\nimport sys\nfrom %s import %s\nif __name__ == '__main__':\n    sys.exit(%s())\n",
		interpreter, s.module, first, s.function)
}

// sourceDir returns the directory of a project's packages: src in the layout of that name, else the top.
func sourceDir(j *language.Job) string {
	isProject := language.FirstFile(j.Files, "", []string{projectFile, "setup.py", "setup.cfg"}) != ""
	if isProject && slices.ContainsFunc(j.Files, func(f language.File) bool {
		return strings.HasPrefix(f.Path, "src/") && strings.Count(f.Path, "/") <= 2 && path.Ext(f.Path) == ".py"
	}) {
		return j.Inside("src")
	}
	return j.Dir
}
