package sql

import (
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Language is SQL in the dialect of SQLite, which is part of the kit.
var Language = language.Language{
	Name: "sql", Title: "SQL", Aliases: []string{"sqlite", "sqlite3"},
	Extensions: []string{".sql"}, Source: "main.sql", Mains: []string{"main.sql", "query.sql"},
	Sample: "SELECT 1;\n",
	Image:  "sandbox-run/polyglot", Options: []string{"setup"},
	Plan: plan, Session: planSession,
}

// TablesFile is the file of query results as data, hidden from the program.
const TablesFile = sandbox.TmpDir + "/.sandbox-run-tables.json"

// SyntaxExit is the exit code of the kit for a statement with a syntax error.
const SyntaxExit = 65

// noDiskExit is the exit code of the kit for a statement that filled the disk.
const noDiskExit = 73

// Version is the version of SQLite in the kit; a test compares them.
const Version = "3.54.1"

// plan runs scripts in a database of their own, or in the only one among the files.
func plan(j *language.Job) error {
	kit, err := j.UseKit()
	if err != nil {
		return err
	}
	scripts, err := Scripts(j)
	if err != nil {
		return err
	}
	args := append([]string{kit, "sqlite", "--data", j.Workdir(), "--tables", TablesFile}, databaseArgs(j)...)
	run := j.AddRun(append(append(args, "--"), scripts...)...)
	run.SyntaxExit, run.NoDiskExit = SyntaxExit, noDiskExit
	j.Plan.Version, j.Plan.Tables = Version, TablesFile
	return nil
}

// databaseArgs are the arguments of the kit that name the database.
func databaseArgs(j *language.Job) []string {
	switch databases := databases(j); len(databases) {
	case 0:
	case 1:
		return []string{"--db", databases[0]}
	default:
		several := "there are several databases (" + language.Listed(databases) + "), and none was opened; ATTACH DATABASE opens one"
		j.Plan.Notes = append(j.Plan.Notes, several)
	}
	return nil
}

// planSession plans a session: one connection, to the database that a run would open.
func planSession(j *language.Job) error {
	if err := RefuseSetup(j); err != nil {
		return err
	}
	kit, err := j.UseKit()
	if err != nil {
		return err
	}
	j.AddDriver(append([]string{kit, "sqlite-session", "--data", j.Workdir()}, databaseArgs(j)...)...)
	j.Plan.Version = Version
	return nil
}

// RefuseSetup refuses the option setup for a session, whose cells can do the same.
func RefuseSetup(j *language.Job) error {
	if len(j.Request.Options.Setup) > 0 {
		return sandbox.Errorf(sandbox.ErrUnsupported, "setup", "execute the scripts as cells", "a session has no scripts to run before")
	}
	return nil
}

// Scripts returns the paths of the scripts to run, one after the other: those of the option setup, then the entry.
func Scripts(j *language.Job) ([]string, error) {
	if len(j.Request.Args) > 0 {
		return nil, sandbox.Invalid("args", "%s scripts take none", j.Language.Title)
	}
	var scripts []string
	for _, name := range j.Request.Options.Setup {
		at := located(j, path.Clean(name))
		if at == "" {
			return nil, sandbox.Invalid("setup", "there is no file %q in the program or its inputs", name)
		}
		scripts = append(scripts, at)
	}
	return append(scripts, j.Inside(j.Entry)), nil
}

// located returns the path in the sandbox of a file of the program or of its inputs; "" for none.
func located(j *language.Job, name string) string {
	switch {
	case language.Find(j.Files, name) != nil:
		return j.Inside(name)
	case language.Find(j.Request.Inputs, name) != nil:
		return path.Join(sandbox.WorkspaceDir, name)
	}
	return ""
}

// databases returns the files that are SQLite databases by name.
func databases(j *language.Job) (found []string) {
	for _, f := range slices.Concat(j.Files, j.Request.Inputs) {
		switch strings.ToLower(path.Ext(f.Path)) {
		case ".db", ".db3", ".sqlite", ".sqlite3":
			found = append(found, located(j, f.Path))
		}
	}
	return found
}
