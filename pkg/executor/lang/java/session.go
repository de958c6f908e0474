package java

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/java/session"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// sessionSince is the first JDK in which the driver of sessions works.
	sessionSince   = 17
	sessionJar     = "session.jar"
	sessionArchive = "session.jsa"
)

// planSession plans a session. Classes and jars of the program's files, and jars of packages, are on the class path of the cells.
func planSession(j *language.Job) error {
	major, _, _ := strings.Cut(j.Tool.Version, ".")
	n, err := strconv.Atoi(major)
	if hasShell := j.Tool.Programs["jshell"] != "" || j.OnForeignRoot(); err != nil || n < sessionSince || !hasShell {
		return sandbox.Errorf(sandbox.ErrUnsupported, "lang", "a complete JDK "+strconv.Itoa(sessionSince)+" or later",
			"sessions of Java need JDK %d or later with jdk.jshell; this is %s", sessionSince, j.Tool.Version)
	}
	layer, err := showJars(j)
	if err != nil {
		return err
	}
	classPath := strings.Join(append(programPath(j), layer...), ":")
	// JShell compiles every cell with javac. Profiles for the better compiler double the time of the first hundreds of cells.
	machine := append(programMachine(j), "-XX:TieredStopAtLevel=1")
	p := session.Add(j, machine, classPath)
	p.Process.Env = maps.Clone(j.Tool.Env)
	p.OutOfMemory = isOutOfMemory
	if warm := j.HostWarmDir(); warm != "" {
		w := &jdkFiles{dir: prepared.ToolchainDir(warm, j.Tool), tool: j.Tool, manager: j.Manager, store: j.Store, cold: p.Process.Args}
		j.Mount(w.path(), javaDir)
		j.Plan.Prepare = w.prepare
		p.Process.Args = slices.Concat(machine, []string{
			"-XX:SharedArchiveFile=" + javaDir + "/" + sessionArchive, "-Xlog:disable",
			"-cp", javaDir + "/" + sessionJar + ":" + classPath, session.Class, classPath,
		})
	}
	return nil
}

// sessionDir returns the name of the directory of the prepared driver, which changes with its sources.
func sessionDir() string {
	sum := sha256.Sum256(session.Source())
	return "session-" + hex.EncodeToString(sum[:6])
}

// makeSession compiles the driver of sessions, and archives the classes that it loads for a few cells.
func (w *jdkFiles) makeSession(ctx context.Context, home, made string) error {
	sources, classes := filepath.Join(home, "session"), filepath.Join(home, "classes")
	if err := os.CopyFS(sources, session.Sources()); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(sources, "*.java"))
	if err != nil {
		return err
	}
	args := append(javacFlags(256*sandbox.MiB), "-d", classes)
	if err := w.runTool(ctx, home, w.tool.Programs["javac"], append(args, files...)...); err != nil {
		return err
	}
	pkg := filepath.FromSlash(strings.ReplaceAll(strings.TrimSuffix(session.Class, ".Driver"), ".", "/"))
	if err := writeJar(filepath.Join(made, sessionJar), classes, pkg); err != nil {
		return err
	}
	return w.inSandbox(ctx, made, func(ctx context.Context, id string) error {
		machine := append([]string{w.tool.Path}, startupFlags()...)
		return errors.Join(w.archive(ctx, id, made, sessionArchive, machine, "-Xlog:disable", "-cp", javaDir+"/"+sessionJar, session.Class,
			sandbox.WorkspaceDir, session.Practice))
	})
}
