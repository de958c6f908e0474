package executor

import (
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var sqlite = Language{
	Name: "sql", Title: "SQL", Aliases: []string{"sqlite", "sqlite3"},
	Extensions: []string{".sql"}, Source: "main.sql", Mains: []string{"main.sql", "query.sql"},
	Options: []string{"setup"},
	plan:    planSQLite,
}

// tablesFile is where queries leave their results as data, out of the program's sight.
const tablesFile = sandbox.TmpDir + "/.sandbox-run-tables.json"

// sqlSyntaxExit is how the kit ends when a statement can not be parsed.
const sqlSyntaxExit = 65

// sqliteVersion is the SQLite that is built into the kit: a test asks it.
const sqliteVersion = "3.54.1"

// planSQLite runs scripts in a database of their own, or in the one that is among the files.
func planSQLite(j *job) error {
	kit, err := j.useKit()
	if err != nil {
		return err
	}
	scripts, err := j.scripts()
	if err != nil {
		return err
	}
	args := []string{kit, "sqlite", "--data", j.workdir(), "--tables", tablesFile}
	switch databases := j.databases(); len(databases) {
	case 0:
	case 1:
		args = append(args, "--db", databases[0])
	default:
		j.plan.Notes = append(j.plan.Notes, "there are several databases ("+listed(databases)+"), and none was opened; ATTACH DATABASE opens one")
	}
	run := j.run(append(append(args, "--"), scripts...)...)
	run.SyntaxExit = sqlSyntaxExit
	j.plan.Version, j.plan.Tables = sqliteVersion, tablesFile
	return nil
}

// scripts are what is run, one after the other: those that set up, and the one that was asked for.
func (j *job) scripts() ([]string, error) {
	if len(j.req.Args) > 0 {
		return nil, sandbox.Invalid("args", "%s scripts take none", j.lang.Title)
	}
	var scripts []string
	for _, name := range j.req.Options.Setup {
		at := j.located(path.Clean(name))
		if at == "" {
			return nil, sandbox.Invalid("setup", "there is no file %q in the program or its inputs", name)
		}
		scripts = append(scripts, at)
	}
	return append(scripts, j.inside(j.entry)), nil
}

// located is where a file of the program or of its inputs lies inside; "" for none.
func (j *job) located(name string) string {
	switch {
	case find(j.files, name) != nil:
		return j.inside(name)
	case find(j.req.Inputs, name) != nil:
		return path.Join(sandbox.WorkspaceDir, name)
	}
	return ""
}

// databases are the files that are SQLite's, by their names.
func (j *job) databases() (found []string) {
	for _, f := range slices.Concat(j.files, j.req.Inputs) {
		switch strings.ToLower(path.Ext(f.Path)) {
		case ".db", ".db3", ".sqlite", ".sqlite3":
			found = append(found, j.located(f.Path))
		}
	}
	return found
}
