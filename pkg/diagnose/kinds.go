package diagnose

// Kind is the kind of an error. The set is closed: kindTable has a row for each.
type Kind string

// The kinds.
const (
	KindError      Kind = "error"
	KindCompile    Kind = "compile_error"
	KindSyntax     Kind = "syntax_error"
	KindType       Kind = "type_error"
	KindName       Kind = "undefined_name"
	KindModule     Kind = "missing_module"
	KindCommand    Kind = "missing_command"
	KindMain       Kind = "missing_main"
	KindVersion    Kind = "version"
	KindIndex      Kind = "index_out_of_range"
	KindKey        Kind = "missing_key"
	KindNull       Kind = "null_access"
	KindDivision   Kind = "division_by_zero"
	KindValue      Kind = "invalid_value"
	KindEncoding   Kind = "encoding"
	KindInput      Kind = "end_of_input"
	KindRecursion  Kind = "recursion"
	KindDeadlock   Kind = "deadlock"
	KindNetwork    Kind = "network"
	KindReadOnly   Kind = "read_only"
	KindPermission Kind = "permission"
	KindFile       Kind = "missing_file"
	KindMemory     Kind = "memory_limit"
	KindTime       Kind = "time_limit"
	KindCPU        Kind = "cpu_limit"
	KindDisk       Kind = "disk_limit"
	KindProcesses  Kind = "process_limit"
	KindOpenFiles  Kind = "open_files_limit"
)

// kindTable describes the kinds, and names the page of the documentation about them.
var kindTable = [...]struct {
	kind      Kind
	what, doc string
}{
	{KindError, "an error without a kind of its own", ""},
	{KindCompile, "the compiler refused the program", ""},
	{KindSyntax, "the program is not written as its language demands", ""},
	{KindType, "a value of a wrong type", ""},
	{KindName, "a name that is not defined", ""},
	{KindModule, "a module or package that is not there", "docs/guide/packages.md"},
	{KindCommand, "a command that is not there", "docs/guide/images-and-backends.md"},
	{KindMain, "the program has no entry", "docs/guide/languages.md"},
	{KindVersion, "the program needs another version of the language", "docs/guide/images-and-backends.md"},
	{KindIndex, "an index beyond the end", ""},
	{KindKey, "a key that is not there", ""},
	{KindNull, "a value that is None, null, nil or undefined", ""},
	{KindDivision, "a division by zero", ""},
	{KindValue, "a text that can not be converted", ""},
	{KindEncoding, "bytes that are not text in the expected encoding", ""},
	{KindInput, "standard input has ended", "docs/guide/getting-started.md"},
	{KindRecursion, "calls without an end", ""},
	{KindDeadlock, "the program waits for itself", ""},
	{KindNetwork, "a host that the sandbox may not reach", "docs/guide/network.md"},
	{KindReadOnly, "a path that the sandbox shows read-only", "docs/guide/files-and-workspaces.md"},
	{KindPermission, "a path or operation that is not permitted", "docs/guide/files-and-workspaces.md"},
	{KindFile, "a file that is not in the sandbox", "docs/guide/files-and-workspaces.md"},
	{KindMemory, "the memory limit", "docs/guide/limits-and-verdicts.md"},
	{KindTime, "the time limit", "docs/guide/limits-and-verdicts.md"},
	{KindCPU, "the limit of CPU time", "docs/guide/limits-and-verdicts.md"},
	{KindDisk, "the limit of the scratch disk", "docs/guide/limits-and-verdicts.md"},
	{KindProcesses, "the limit of processes and threads", "docs/guide/limits-and-verdicts.md"},
	{KindOpenFiles, "the limit of open files", "docs/guide/limits-and-verdicts.md"},
}

// Kinds lists the kinds.
func Kinds() (all []Kind) {
	for _, row := range kindTable {
		all = append(all, row.kind)
	}
	return all
}

// Describe says in a few words what a kind is.
func (k Kind) Describe() string {
	for _, row := range kindTable {
		if row.kind == k {
			return row.what
		}
	}
	return ""
}

func (k Kind) docs() string {
	for _, row := range kindTable {
		if row.kind == k {
			return row.doc
		}
	}
	return ""
}

// IsMissing reports whether something is not in the sandbox that may be on the user's machine.
func (k Kind) IsMissing() bool {
	return k == KindModule || k == KindName || k == KindFile || k == KindCompile
}
