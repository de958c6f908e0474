package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
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

var postgres = Language{
	Name: "postgres", Title: "PostgreSQL", Aliases: []string{"postgresql", "psql", "pg"},
	Extensions: []string{".pgsql", ".psql", ".sql"}, // .sql alone is SQLite's, which needs nothing
	Source:     "main.sql", Mains: []string{"main.sql", "query.sql"},
	Toolchain: toolchain.Postgres, Options: []string{"setup"},
	plan: planPostgres,
}

// planPostgres runs scripts on a server of their own, on a copy of a cluster that was made once.
func planPostgres(j *job) error {
	kit, err := j.useKit()
	if err != nil {
		return err
	}
	scripts, err := j.scripts()
	if err != nil {
		return err
	}
	if j.warmDir == "" {
		return &sandbox.Error{
			Op: "postgres", Kind: sandbox.ErrUnsupported, Err: errors.New("there is no cache directory in which to keep a cluster"), Hint: "set XDG_CACHE_HOME",
		}
	}
	if j.kept() {
		return &sandbox.Error{
			Op: "postgres", Kind: sandbox.ErrUnsupported, Err: errors.New("its cluster is prepared on this machine, and this backend shows nothing of it"),
			Hint: "--backend native, or --lang sql",
		}
	}
	w := &clusterTemplate{engine: j.engine, kit: j.kit, tool: j.tool, image: j.image, dir: warmDirOf(j.warmDir, j.tool)}
	j.plan.Spec.Root.Add = append(j.plan.Spec.Root.Add, sandbox.Mount{Source: w.cluster(), Target: clusterInside})
	j.plan.prepare = w.prepare
	server := []string{"--bin", j.tool.Home, "--template", clusterInside}
	run := j.run(slices.Concat([]string{kit, "postgres"}, server, []string{"--"}, scripts)...)
	run.SyntaxExit = sqlSyntaxExit
	if j.image == nil && j.ahead() {
		run.Process.Warm = &sandbox.Warm{Name: "postgres", Args: slices.Concat([]string{kit, "postgres", "--wait"}, server), Handshake: kitpath.Waiting}
	}
	return nil
}

const (
	// clusterInside is where the cluster that is copied is shown.
	clusterInside = ToolDir + "/postgres"
	// clusterMade is where it is made, in a sandbox of its own.
	clusterMade = sandbox.TmpDir + "/cluster"
	// maxCluster bounds it: it has about a thousand files in about 20 MiB.
	maxCluster      = 256 * sandbox.MiB
	maxClusterFiles = 20_000
)

// clusterTemplate is a database cluster as initdb makes it. It is made in a sandbox, by the machine's PostgreSQL and nothing else, and
// kept beside what other toolchains prepare (see warm.go); sandboxes read it.
type clusterTemplate struct {
	engine  *Executor
	kit     string
	tool    *toolchain.Toolchain
	image   *Image // that the tool is of; nil is this machine
	dir     string
	require sandbox.Tier // as little as the run accepts
}

// cluster is where it lies on the host. The number counts the ways in which we have made it.
func (w *clusterTemplate) cluster() string { return filepath.Join(w.dir, "cluster-1") }

func (w *clusterTemplate) exists() bool {
	st, err := os.Lstat(w.cluster())
	return err == nil && st.IsDir()
}

func (w *clusterTemplate) prepare(ctx context.Context, p *Plan, _ bool, on prepareHook) (release func(), err error) {
	const op = "make a PostgreSQL cluster"
	use, err := useWarm(w.dir)
	if err != nil {
		return nil, &sandbox.Error{Op: op, Err: err}
	}
	w.require = p.Spec.Require
	if err := w.ensure(ctx, on); err != nil {
		use()
		return nil, &sandbox.Error{Op: op, Err: err}
	}
	return use, nil
}

// ensure makes the cluster unless it is there.
func (w *clusterTemplate) ensure(ctx context.Context, on prepareHook) error {
	if w.exists() {
		return nil
	}
	if on != nil {
		done := on("making a PostgreSQL cluster, once")
		defer done()
	}
	lock, err := lockFile(ctx, filepath.Join(w.dir, warmLock), false)
	if err != nil {
		return err
	}
	defer lock.Close()
	if w.exists() { // another has made it meanwhile
		return nil
	}
	dropWarm(ctx, w.dir)
	return w.make(ctx)
}

// listDirectories prints the directories below one: those that are empty are part of a cluster too.
const listDirectories = `walk() { for d in "$1"/*/; do if [ -d "$d" ]; then printf '%s\n' "${d%/}"; walk "${d%/}"; fi; done; }; cd "$1" && walk .`

// make makes the cluster with the lock held. It has its name only when it is whole.
func (w *clusterTemplate) make(ctx context.Context) (err error) {
	m := w.engine.manager
	spec := sandbox.Spec{
		Root: sandbox.Root{Add: append([]sandbox.Mount{{Source: w.kit, Target: kitInside}}, w.tool.Mounts...)}, Require: w.require, Workdir: sandbox.WorkspaceDir,
	}
	if w.image != nil {
		w.image.Apply(&spec)
	}
	id, err := m.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Delete(context.WithoutCancel(ctx), id)) }()
	var directories string
	for _, args := range [][]string{
		{kitInside, "postgres-template", "--bin", w.tool.Home, "--out", clusterMade},
		{"/bin/sh", "-c", listDirectories, "sh", clusterMade},
	} {
		r, err := m.Run(ctx, id, sandbox.Process{Args: args}, sandbox.IO{})
		if err != nil {
			return err
		}
		switch {
		case r.Exit.Code == kitFailed:
			return errKit("initdb", r.Stderr.Bytes())
		case !r.Success():
			return fmt.Errorf("%w: %s", failure(r), strings.TrimSpace(string(r.Stderr.Bytes())))
		}
		directories = string(r.Stdout.Bytes())
	}
	fresh := w.cluster() + ".new" // whatever is there, somebody has abandoned
	if err := removeTree(ctx, fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := w.takeOut(ctx, id, fresh, directories); err != nil {
		return errors.Join(err, removeTree(context.WithoutCancel(ctx), fresh))
	}
	return os.Rename(fresh, w.cluster())
}

// takeOut copies the cluster to the host, readable by whoever a sandbox's user is: there are no secrets in it.
func (w *clusterTemplate) takeOut(ctx context.Context, id, to, directories string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	for d := range strings.Lines(directories) {
		if err := root.MkdirAll(filepath.FromSlash(strings.TrimSpace(d)), 0o755); err != nil {
			return err
		}
	}
	left, err := w.engine.manager.Take(ctx, id, sandbox.Selection{Patterns: []string{clusterMade}, MaxFiles: maxClusterFiles, MaxBytes: maxCluster}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		out, err := root.OpenFile(filepath.FromSlash(strings.TrimPrefix(f.Path, clusterMade+"/")), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		return errors.Join(err, out.Close())
	})
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%s: %s", left[0].Path, left[0].Reason)
	}
	return nil
}

// maxTables bounds the file in which a query leaves its results.
const maxTables = 8 * sandbox.MiB

// takeTables reads the results of a query as data. A program that was ended before it wrote any has none.
func (x *execution) takeTables(ctx context.Context) error {
	left, err := x.e.manager.Take(ctx, x.id, sandbox.Selection{Patterns: []string{x.plan.Tables}, MaxFiles: 1, MaxBytes: maxTables}, func(_ sandbox.File, _ sandbox.Size, r io.Reader) error {
		data := json.NewDecoder(r)
		data.UseNumber() // no digit of a large number is lost
		if err := data.Decode(&x.out.Tables); err != nil {
			x.out.Tables = nil
			x.out.Notes = append(x.out.Notes, "the results as data are incomplete: "+err.Error())
		}
		return nil
	})
	for _, u := range left {
		x.out.Notes = append(x.out.Notes, "the results as data were not taken: "+u.Reason)
	}
	return err
}
