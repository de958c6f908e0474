package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/sql"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Language is PostgreSQL. Each program has a server of its own.
var Language = language.Language{
	Name: "postgres", Title: "PostgreSQL", Aliases: []string{"postgresql", "psql", "pg"},
	Extensions: []string{".pgsql", ".psql", ".sql"}, // .sql alone is SQLite's, which needs no toolchain
	Source:     "main.sql", Mains: []string{"main.sql", "query.sql"},
	Sample:    "SELECT 1;\n",
	Toolchain: &description, Options: []string{"setup"},
	Tier: sandbox.TierContainer, // others refuse shared memory
	Plan: plan, Session: planSession,
}

// plan runs scripts on a server of their own, on a copy of a prepared cluster.
func plan(j *language.Job) error {
	kit, err := j.UseKit()
	if err != nil {
		return err
	}
	scripts, err := sql.Scripts(j)
	if err != nil {
		return err
	}
	server, err := showCluster(j)
	if err != nil {
		return err
	}
	server = append(server, "--tables", sql.TablesFile)
	j.Plan.Tables = sql.TablesFile
	run := j.AddRun(slices.Concat([]string{kit, "postgres"}, server, []string{"--"}, scripts)...)
	run.SyntaxExit = sql.SyntaxExit
	if j.Image == nil && j.MayPrestart() {
		run.Process.Warm = &sandbox.Warm{Name: "postgres", Args: slices.Concat([]string{kit, "postgres", "--wait"}, server),
			Handshake: kitpath.Waiting}
	}
	return nil
}

// planSession plans a session: a server of its own, on a copy of the prepared cluster, and one connection to it.
func planSession(j *language.Job) error {
	if err := sql.RefuseSetup(j); err != nil {
		return err
	}
	kit, err := j.UseKit()
	if err != nil {
		return err
	}
	server, err := showCluster(j)
	if err != nil {
		return err
	}
	j.AddDriver(append([]string{kit, "postgres-session"}, server...)...)
	return nil
}

// showCluster shows the prepared cluster, and returns the arguments of the kit that name the server and the cluster.
func showCluster(j *language.Job) ([]string, error) {
	if j.WarmDir == "" {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "postgres", "set XDG_CACHE_HOME",
			"there is no cache directory in which to keep a cluster")
	}
	if j.OnForeignRoot() {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "postgres", "--backend native, or --lang sql",
			"its cluster is prepared on this machine, and this backend shows nothing of it")
	}
	w := &cluster{manager: j.Manager, kit: j.Kit, tool: j.Tool, image: j.Image, dir: prepared.ToolchainDir(j.WarmDir, j.Tool)}
	j.Mount(w.path(), clusterInside)
	j.Plan.Prepare = w.prepare
	return []string{"--bin", j.Tool.Home, "--template", clusterInside}, nil
}

const (
	// clusterInside is the path of the prepared cluster in the sandbox.
	clusterInside = language.ToolDir + "/postgres"
	// clusterMade is the path at which a sandbox of its own makes the cluster.
	clusterMade = sandbox.TmpDir + "/cluster"
	// maxCluster bounds the cluster, which has about a thousand files in about 20 MiB.
	maxCluster      = 256 * sandbox.MiB
	maxClusterFiles = 20_000
)

// cluster is a database cluster of initdb. The machine's PostgreSQL makes it in a sandbox, from nothing else, beside the prepared
// files of other toolchains; sandboxes read it.
type cluster struct {
	manager *sandbox.Manager
	kit     string
	tool    *toolchain.Toolchain
	image   *language.Image // image of the toolchain; nil: this machine
	dir     string
	require sandbox.Tier // the lowest tier that the run accepts
}

// path returns the path on the host. The number in it changes with the way in which the cluster is made.
func (w *cluster) path() string { return filepath.Join(w.dir, "cluster-1") }

func (w *cluster) exists() bool {
	st, err := os.Lstat(w.path())
	return err == nil && st.IsDir()
}

func (w *cluster) prepare(ctx context.Context, p *language.Plan, _ bool, on prepared.Hook) (release func(), err error) {
	const op = "make a PostgreSQL cluster"
	use, err := prepared.Use(w.dir)
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

// ensure makes the cluster unless it exists.
func (w *cluster) ensure(ctx context.Context, on prepared.Hook) error {
	if w.exists() {
		return nil
	}
	return prepared.Fill(ctx, w.dir, "making a PostgreSQL cluster, once", on, func() error {
		if w.exists() { // another process has made it meanwhile
			return nil
		}
		prepared.DropOthers(ctx, w.dir)
		return w.make(ctx)
	})
}

// listDirectories prints the directories below one: empty ones are part of a cluster too.
const listDirectories = `walk() { for d in "$1"/*/; do if [ -d "$d" ]; then printf '%s\n' "${d%/}"; walk "${d%/}"; fi; done; }
cd "$1" && walk .`

// make makes the cluster with the lock held. The cluster gets its name when it is complete.
func (w *cluster) make(ctx context.Context) (err error) {
	m := w.manager
	add := append([]sandbox.Mount{{Source: w.kit, Target: language.KitPath}}, w.tool.Mounts...)
	spec := sandbox.Spec{Root: sandbox.Root{Add: add}, Require: w.require, Workdir: sandbox.WorkspaceDir}
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
		{language.KitPath, "postgres-template", "--bin", w.tool.Home, "--out", clusterMade},
		{"/bin/sh", "-c", listDirectories, "sh", clusterMade},
	} {
		r, err := m.Run(ctx, id, sandbox.Process{Args: args}, sandbox.IO{})
		if err != nil {
			return err
		}
		switch {
		case r.Exit.Code == language.KitFailed:
			return language.KitError("initdb", r.Stderr.Bytes())
		case !r.Success():
			return fmt.Errorf("%w: %s", language.VerdictError(r), strings.TrimSpace(string(r.Stderr.Bytes())))
		}
		directories = string(r.Stdout.Bytes())
	}
	fresh := w.path() + ".new" // left by an interrupted run
	if err := prepared.RemoveTree(ctx, fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := w.takeOut(ctx, id, fresh, directories); err != nil {
		return errors.Join(err, prepared.RemoveTree(context.WithoutCancel(ctx), fresh))
	}
	return os.Rename(fresh, w.path())
}

// takeOut copies the cluster to the host. Every user of a sandbox can read it: it has no secrets.
func (w *cluster) takeOut(ctx context.Context, id, to, directories string) error {
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
	made := sandbox.Selection{Patterns: []string{clusterMade}, MaxFiles: maxClusterFiles, MaxBytes: maxCluster}
	return errors.Join(prepared.Take(ctx, w.manager, id, made, to, nil))
}
