package executor

import (
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// diagnose explains a failure by what the program printed. It changes nothing else of the result.
func (x *execution) diagnose() {
	files := x.plan.Files[:x.plan.program]
	f := &diagnose.Failure{
		Language: x.plan.Language, Version: x.plan.Version, Result: &x.out.Result, Image: x.plan.Spec.Root.From != sandbox.ImageRef{},
		Source: func(name string) (string, bool) { return sourceOf(files, name) },
	}
	for _, file := range files[:min(len(files), maxNamedFiles)] {
		f.Files = append(f.Files, relativePath(file.Path))
	}
	x.out.Diagnosis = diagnose.Of(f)
	x.hintPackages()
}

// maxNamedFiles bounds the files of a program whose names are compared with those in its output.
const maxNamedFiles = 10_000

// maxSourceFile bounds the file of which a diagnosis shows lines.
const maxSourceFile = 1 << 20

func sourceOf(files []sandbox.File, name string) (string, bool) {
	for i := range files {
		if relativePath(files[i].Path) != name || files[i].Link != "" {
			continue
		}
		f := language.File{Data: files[i].Data, Open: files[i].Open}
		text, err := f.Head(maxSourceFile)
		return string(text), err == nil && len(text) < maxSourceFile
	}
	return "", false
}

// relativePath is a path in the sandbox as results name it.
func relativePath(p string) string { return strings.TrimPrefix(p, sandbox.WorkspaceDir+"/") }
