package cli

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const hintNote = language.HintNote

// maxSiblings bounds the entries of a directory that hintMissingFile reads.
const maxSiblings = 2000

// missingWords are parts of messages, in lower case, with which programs and compilers report that there is no such file or module.
var missingWords = []string{
	"no such file", "not found", "filenotfound", "nosuchfile", "enoent", "cannot find", "can't find", "could not find", "couldn't find",
	"no module named", "cannot open", "can't open", "could not open", "could not resolve", "unresolved", "undefined", "does not exist",
}

// hintMissingFile returns the next step after a failure whose message names a file that is on this machine and not in the sandbox: one
// beside the program's only file, or one that was left out of its directory. It is "" if there is no such file.
func (o *runOptions) hintMissingFile(r *executor.Result) string {
	if r.Verdict != sandbox.VerdictNonzeroExit && r.Verdict != sandbox.VerdictCompileError {
		return ""
	}
	said := missingLines(string(r.Stderr.Edges(sandbox.OutputMemory)) + "\n" + string(r.Stdout.Edges(sandbox.OutputMemory)))
	if said == "" {
		return ""
	}
	for _, l := range o.program.left {
		if l.why != builtinRule && (mentions(said, l.path) || mentions(said, path.Base(l.path))) { // paths of messages have .venv in them
			return fmt.Sprintf("%s is left out of the sandbox (%s); to copy it: --include %s", l.path, l.why, sandbox.ShellQuote("/"+l.path))
		}
	}
	if o.program.beside == "" {
		return ""
	}
	dir, own := filepath.Split(o.program.beside)
	for _, name := range siblings(filepath.Join(dir, "."), own) {
		stem := strings.TrimSuffix(name, path.Ext(name))
		isSource := path.Ext(name) == path.Ext(own)
		// Go names the function and not the file; Rust's errors of the system name nothing.
		named := mentions(said, name) || isSource && (mentions(said, stem) || strings.Contains(said, "undefined: ")) ||
			mentions(string(o.program.files[0].Data), name)
		if !named {
			continue
		}
		hint := fmt.Sprintf("%s is beside %s and not in the sandbox; run the directory: %s %s --entry %s", name, own, CommandName,
			sandbox.ShellQuote(filepath.Clean(filepath.Join(dir, "."))), sandbox.ShellQuote(own))
		if r.Phase != executor.PhaseCompile {
			hint += "; or copy the file: --in " + sandbox.ShellQuote(filepath.Join(dir, name))
		}
		return hint
	}
	return ""
}

// siblings returns the names of the other entries of a directory that are not hidden.
func siblings(dir, own string) (names []string) {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	entries, _ := d.ReadDir(maxSiblings) // some entries are enough
	for _, e := range entries {
		if e.Name() != own && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

// missingLines returns the lines of a text that report something missing, each with the lines after it that may name it: javac prints the
// name four lines later.
func missingLines(text string) string {
	var said strings.Builder
	left := 0
	for line := range strings.Lines(text) {
		lower := strings.ToLower(line)
		if slices.ContainsFunc(missingWords, func(word string) bool { return strings.Contains(lower, word) }) {
			left = 5
		}
		if left > 0 {
			said.WriteString(line)
			left--
		}
	}
	return said.String()
}

// mentions reports whether a name stands in a text, not as a part of a longer name.
func mentions(text, name string) bool {
	isLetter := func(c byte) bool {
		return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c >= 0x80
	}
	for at := 0; ; at++ {
		i := strings.Index(text[at:], name)
		if i < 0 || name == "" {
			return false
		}
		at += i
		end := at + len(name)
		if (at == 0 || !isLetter(text[at-1])) && (end == len(text) || !isLetter(text[end])) {
			return true
		}
	}
}
