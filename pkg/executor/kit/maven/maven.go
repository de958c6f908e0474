// Package maven fetches jars from a Maven repository, with the jars that they need.
//
// What. [Run] resolves coordinates by the POMs of a repository, or takes a list of jars with their digests, and puts the jars into a
// directory. It writes a report of them in the order of a class path.
//
//	coordinates ─► POM ─► parents, imported management ─► dependencies ─► POM … ─► jars ─► report
//
// Place in the flow. Runs in a sandbox that installs packages (`sandbox-kit maven`), where a proxy of the registry is the only host.
//
// Lifecycle. One Run per process.
//
// Concurrency. POMs of one distance from the coordinates, and jars, are fetched at the same time, over a few connections.
//
// Limits. Resolution is that of Maven 3 for the scopes compile and runtime: the nearest version of an artifact wins, and among equally near
// ones the first. Profiles, further repositories and system properties are not read, versions are fixed. Types other than jars are left
// out. Every file must have a checksum in the repository (SHA-512, SHA-256 or SHA-1), or a digest in the list. POMs and jars are untrusted:
// see the constants.
package maven

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/coordinate"
)

// The bounds of an installation.
const (
	maxDepth     = 16       // of dependencies, of parents, of imports
	maxArtifacts = 1000     // in one class path
	maxReads     = 20_000   // of POMs, fetched or kept
	maxManaged   = 50_000   // entries that POMs manage for one artifact
	maxPOM       = 4 << 20  // bytes
	maxJar       = 1 << 30  // bytes
	maxLock      = 32 << 20 // bytes
)

// Options says what to fetch.
type Options struct {
	Index       string   // URL of the repository
	Coordinates []string // or else
	Lock        string   // file with lines of coordinate and sha256:HEX
	Out         string   // directory for the jars
	Report      string   // file for lines of coordinate, sha256:HEX and URL
}

// jar is a file of the class path. Its digest is known beforehand if a lock has it.
type jar struct {
	coordinate.Coordinate
	optional bool // the repository need not have it: the artifact may consist of its POM
	digest   string
	needed   string // for errors
}

// Run fetches jars. Its error names the coordinate that can not be fetched.
func Run(ctx context.Context, o Options) error {
	f := newFetcher(o.Index)
	var jars []*jar
	var err error
	if o.Lock != "" {
		jars, err = readLock(o.Lock)
	} else {
		jars, err = resolve(ctx, f, o.Coordinates)
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	var all []coordinate.Coordinate
	for _, j := range jars {
		all = append(all, j.Coordinate)
	}
	names := coordinate.Files(all)
	if err := forEach(ctx, len(jars), func(ctx context.Context, i int) error {
		if err := f.fetchJar(ctx, jars[i], filepath.Join(o.Out, names[i])); err != nil {
			return fmt.Errorf("%s: %w%s", jars[i], err, jars[i].needed)
		}
		return nil
	}); err != nil {
		return err
	}
	var report bytes.Buffer
	for _, j := range jars {
		if j.digest != "" {
			fmt.Fprintf(&report, "%s sha256:%s %s\n", j, j.digest, f.index+j.Path("jar"))
		}
	}
	return os.WriteFile(o.Report, report.Bytes(), 0o644)
}

// readLock reads a list of jars.
func readLock(name string) (jars []*jar, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		text, digest, _ := strings.Cut(lines.Text(), " sha256:")
		c, err := coordinate.Parse(text)
		if err != nil || len(digest) != 64 || len(jars) == maxArtifacts {
			return nil, fmt.Errorf("%s: %.100q is no line of a lock, or one too many", name, lines.Text())
		}
		jars = append(jars, &jar{Coordinate: c, digest: digest})
	}
	return jars, lines.Err()
}

// forEach calls a function for each of the first n numbers, at the same time. The first error ends the others.
func forEach(ctx context.Context, n int, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := call(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
