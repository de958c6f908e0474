// Package postgres runs SQL scripts on a PostgreSQL server that is started for them.
//
// What. Make prepares a cluster once; Run copies it, starts a server on the copy, lets psql execute the scripts and stops the server. A
// [Session] does the same for cells, with one psql that stays.
//
// Place in the flow. `sandbox-kit postgres` calls Run inside the sandbox, with the cluster mounted read-only; `sandbox-kit
// postgres-template` calls Make, and the executor keeps the result; `sandbox-kit postgres-session` serves a Session.
//
// Lifecycle. One server per Run, stopped when Run returns; in a waiting process it runs before the scripts arrive. The copy stays in the
// scratch, which is removed with the sandbox.
//
// Concurrency. Run may be called several times at once: each has its own directory, and no server listens on a network.
//
// Limits. Linux, in a sandbox whose memory the kernel limits: others refuse the shared memory it needs. The server refuses to run as
// root. Nothing it writes survives a crash (fsync is off), and there is neither autovacuum nor replication. Scripts run as a superuser,
// in the database sandbox; the only other one is template1. Cells can do all that scripts can, commands of psql included. A cell
// that ends the server or psql ends its session.
//
// Results. psql prints them. Between psql and the server, a recorder reads the messages and collects the results as data.
//
// Run waits for the server by inotify on postmaster.pid. Whether an error is one of syntax is read from the SQLSTATE in the server's log.
// At the end the server is stopped by SIGQUIT, because the cluster is not read again.
package postgres

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// User is the name of the superuser and of the database that scripts run in.
const User = "sandbox"

// Options are the arguments of Run.
type Options struct {
	Bin      string   // directory of initdb, postgres and psql
	Template string   // a cluster by Make
	Files    []string // scripts, in order; none means In
	In       io.Reader
	Out, Err io.Writer
	Tables   string // file for the results as JSON; "" means none
	// Await, where it is not nil, is called when the server accepts connections, and returns the scripts.
	Await func() ([]string, error)
}

// ErrFailed says that a script failed; psql has printed why.
var ErrFailed = errors.New("the script failed")

// ErrSyntax says that the first statement can not be parsed; psql has printed where.
var ErrSyntax = errors.New("the script has a syntax error")

// syntaxState is the SQLSTATE of a syntax error.
const syntaxState = "42601"

// Make creates a small cluster in a directory that must not exist, or be empty. Run refuses an unfinished cluster: it checks
// for the file mark, which Make writes last.
func Make(bin, dir string) error {
	// All messages in English, and a sort order that needs no locale of the host.
	initdb := func(locale string) (string, error) {
		cmd := exec.Command(filepath.Join(bin, "initdb"), "--pgdata", dir, "--username", User, "--auth", "trust", "--encoding", "UTF8",
			"--locale", locale, "--lc-messages", "C", "--wal-segsize", "1", "--no-sync", "--no-instructions")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := initdb("C.UTF-8")
	if err != nil && strings.Contains(out, "locale") {
		out, err = initdb("C")
	}
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, strings.TrimSpace(out))
	}
	// Two of the three databases suffice, which is a third less to copy for each run. Each line is a statement.
	single := exec.Command(filepath.Join(bin, "postgres"), "--single", "-j", "-D", dir, "-c", "fsync=off", "template1")
	single.Stdin = strings.NewReader("ALTER DATABASE postgres RENAME TO " + User + ";\n\n" +
		"UPDATE pg_database SET datistemplate = false WHERE datname = 'template0';\n\n" +
		"DROP DATABASE template0;\n\n")
	if out, err := single.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR:") {
		return fmt.Errorf("postgres --single: %w\n%s", errors.Join(err), strings.TrimSpace(string(out)))
	}
	// The statements so far are in a few log segments, which a new server does not need.
	if out, err := exec.Command(filepath.Join(bin, "pg_resetwal"), "-D", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("pg_resetwal: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return os.WriteFile(filepath.Join(dir, mark), nil, 0o600)
}

// mark is a file of a finished cluster.
const mark = "sandbox-kit.template"

// scripts are the arguments of psql that name the scripts.
func (o Options) scripts() []string {
	if len(o.Files) == 0 {
		return []string{"--file", "-"}
	}
	var args []string
	for _, f := range o.Files {
		args = append(args, "--file", f)
	}
	return args
}
