package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/testregistry"
)

// The sizes of the installed packages.
const (
	wheels     = 20
	wheelFiles = 40
	atOnce     = 8
)

// packageHome is a registry on the loopback, and a user who installs from it.
type packageHome struct {
	*environment
	dir    string
	server *http.Server
	asked  atomic.Int64 // archives
	url    string
}

func (s *environment) newPackageHome(handler http.Handler, archives string) (*packageHome, error) {
	dir, err := os.MkdirTemp(s.cache, "packages-")
	if err != nil {
		return nil, err
	}
	h := &packageHome{environment: s, dir: dir}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h.url = "http://" + listener.Addr().String()
	h.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, archives) {
			h.asked.Add(1)
		}
		handler.ServeHTTP(w, r)
	})}
	go func() { _ = h.server.Serve(listener) }() // until close
	text := fmt.Sprintf("registries:\n  pypi:\n    index: %s/simple/\n  npm:\n    index: %s/\n", h.url, h.url)
	return h, os.WriteFile(h.registries(), []byte(text), 0o600)
}

func (h *packageHome) registries() string { return filepath.Join(h.dir, "registries.yaml") }

func (h *packageHome) close() error {
	return errors.Join(h.server.Close(), removal.Tree(context.Background(), h.dir))
}

// cli is a command of a user whose layers are in a directory of that name.
func (h *packageHome) cli(layers string, args ...string) *program {
	p := h.program(h.environment.cli, args...)
	p.env = append(h.env(layers), "SANDBOX_RUN_SERVER=never", "SANDBOX_RUN_AUDIT_LOG=off")
	return p
}

// env are the variables of that user.
func (h *packageHome) env(layers string) []string {
	return []string{"SANDBOX_RUN_REGISTRIES_FILE=" + h.registries(), "SANDBOX_RUN_IMAGES=" + filepath.Join(h.dir, layers),
		"XDG_CACHE_HOME=" + filepath.Join(h.dir, "cache")}
}

// packages measures installations, and runs with what they have installed.
func (s *environment) packages(ctx context.Context) (rows []bench.Row, err error) {
	var set []testregistry.Wheel
	var names []string
	for i := range wheels {
		w := testregistry.Wheel{Name: fmt.Sprintf("pkg%02d", i), Version: "1.0", Files: map[string]string{}}
		for j := range wheelFiles {
			w.Files[fmt.Sprintf("pkg%02d/m%02d.py", i, j)] = strings.Repeat(fmt.Sprintf("def f%d(x):\n    return x + %d\n", j, i), 40)
		}
		w.Files[fmt.Sprintf("pkg%02d/__init__.py", i)] = fmt.Sprintf("NUMBER = %d\n", i)
		set, names = append(set, w), append(names, w.Name)
	}
	h, err := s.newPackageHome(testregistry.PyPI(set...), "/files/")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	for _, measure := range []func(context.Context, []string) (bench.Row, error){h.cached, h.warm, h.install, h.together} {
		row, err := measure(ctx, names)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	row, err := s.lodash(ctx)
	return append(rows, row), err
}

// warm compares a request to a server that shows a layer with the same request without packages. Both are forks of interpreters that wait.
func (h *packageHome) warm(ctx context.Context, names []string) (row bench.Row, err error) {
	env := append(h.env("served"), systemPath())
	v, err := h.serveWith(ctx, env, "--allow-packages", "pypi")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	const asked = 5 // before the first pair, so that both shapes are in demand
	request := func(deps []string) (bench.Run, error) {
		program := of("python")
		program.deps = deps
		ask := func(ctx context.Context, _ int) (bench.Sample, error) {
			began := time.Now()
			err := v.hello(ctx, &program)
			wall := time.Since(began)
			time.Sleep(refillTime)
			return bench.Sample{Wall: wall}, err
		}
		for range asked {
			if _, err := ask(ctx, 0); err != nil {
				return nil, err
			}
		}
		time.Sleep(refillWait)
		return ask, nil
	}
	with, err := request(names)
	if err != nil {
		return row, err
	}
	without, err := request(nil)
	if err != nil {
		return row, err
	}
	before, err := v.metric(ctx, warmStarts)
	if err != nil {
		return row, err
	}
	a, b, err := bench.Pairs(ctx, h.warmup, h.pairs, with, without)
	if err != nil {
		return row, err
	}
	after, err := v.metric(ctx, warmStarts)
	if err != nil {
		return row, err
	}
	row = bench.Compare("python with a layer of 20 packages, HTTP over the unix socket, warm", "without packages", a, b, 0)
	row.Bar = &bench.Bar{Limit: 2, OfExcess: true}
	row.Note = fmt.Sprintf("%.0f of %d requests were warm starts", after-before, 2*(h.warmup+h.pairs))
	return row, nil
}

// warmStarts is the server's counter of requests that a waiting process has served.
const warmStarts = "sandbox_run_pool_warm_starts_total"

// The size of lodash 4.17.21.
const (
	lodashFiles = 1054
	lodashBytes = 1_413_000
)

// lodash compares the first run with a package of lodash's size with a bare installation and a bare run. Each has an empty store and an empty
// cache of npm.
func (s *environment) lodash(ctx context.Context) (row bench.Row, err error) {
	const node, npm = "/usr/bin/node", "/usr/bin/npm"
	for _, program := range []string{node, npm} {
		if _, err := os.Stat(program); err != nil {
			return row, fmt.Errorf("%w; try: scripts/deps.sh bench", err)
		}
	}
	lodash := testregistry.NPMPackage{Name: "lodash", Version: "4.17.21", Files: map[string]string{"index.js": "module.exports = { VERSION: '4.17.21' };\n"}}
	for i := range lodashFiles - len(lodash.Files) - 1 { // package.json is one
		line := fmt.Sprintf("function f%d(value) { return value == null ? %d : f%d.name.length + value; }\n", i, i*i, i)
		lodash.Files[fmt.Sprintf("f%d.js", i)] = strings.Repeat(line, lodashBytes/lodashFiles/len(line))
	}
	h, err := s.newPackageHome(testregistry.NPM(lodash), "/-/")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	const code = "require('lodash').VERSION"
	ours := func(_ context.Context, number int) (bench.Sample, error) {
		layers := "install" + strconv.Itoa(number)
		return timed(h.cli(layers, "--deps", "lodash", "--lang", "javascript", "--code", code).run, func() error {
			return removal.Tree(ctx, filepath.Join(h.dir, layers))
		})
	}
	bare := func(_ context.Context, number int) (bench.Sample, error) {
		target := filepath.Join(h.dir, "bare"+strconv.Itoa(number))
		install := h.program(npm, "install", "--prefix", target, "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error",
			"--userconfig=/dev/null", "--cache="+filepath.Join(target, "cache"), "--registry="+h.url+"/", "lodash")
		run := h.program(node, "-e", code)
		run.env = []string{"NODE_PATH=" + filepath.Join(target, "node_modules")}
		if err := os.Mkdir(target, 0o700); err != nil {
			return bench.Sample{}, err
		}
		return timed(func() error { return errors.Join(install.run(), run.run()) }, func() error { return removal.Tree(ctx, target) })
	}
	a, b, err := bench.Pairs(ctx, min(1, s.warmup), min(s.probes, 20), ours, bare)
	if err != nil {
		return row, err
	}
	row = bench.Compare("first run with lodash, installation included", "npm install and node", a, b, 1.3)
	row.Note = fmt.Sprintf("%d files of lodash's size; the same registry on the loopback", lodashFiles)
	return row, nil
}

// cached compares a run that shows a layer with the same run without packages.
func (h *packageHome) cached(ctx context.Context, names []string) (bench.Row, error) {
	run := func(args ...string) bench.Run {
		return func(_ context.Context, number int) (bench.Sample, error) {
			return h.cli("cached", append(args, "--lang", "python", "--code", fmt.Sprintf("print(%d)", h.base+number))...).sample()
		}
	}
	with := run("--deps", strings.Join(names, ","))
	if _, err := with(ctx, 0); err != nil { // installs
		return bench.Row{}, err
	}
	a, b, err := bench.Pairs(ctx, h.warmup, h.pairs, with, run())
	if err != nil {
		return bench.Row{}, err
	}
	row := bench.Compare("python with a layer of 20 packages, the whole command", "without packages", a, b, 0)
	row.Bar = &bench.Bar{Limit: 2, OfExcess: true}
	return row, nil
}

// install compares the first run with packages with a bare installation and a bare run. Each has an empty store, and an empty directory.
func (h *packageHome) install(ctx context.Context, names []string) (bench.Row, error) {
	const python = "/usr/bin/python3"
	ours := func(_ context.Context, number int) (bench.Sample, error) {
		return timed(h.cli("install"+strconv.Itoa(number), "--deps", strings.Join(names, ","), "--lang", "python", "--code", "import pkg00").run, func() error {
			return removal.Tree(ctx, filepath.Join(h.dir, "install"+strconv.Itoa(number)))
		})
	}
	bare := func(_ context.Context, number int) (bench.Sample, error) {
		target := filepath.Join(h.dir, "bare"+strconv.Itoa(number))
		pip := h.program(python, append([]string{"-m", "pip", "--quiet", "install", "--no-cache-dir", "--disable-pip-version-check", "--root-user-action=ignore",
			"--only-binary=:all:", "--index-url=" + h.url + "/simple/", "--target=" + target}, names...)...)
		run := h.program(python, "-c", "import pkg00")
		run.env = []string{"PYTHONPATH=" + target}
		return timed(func() error { return errors.Join(pip.run(), run.run()) }, func() error { return removal.Tree(ctx, target) })
	}
	a, b, err := bench.Pairs(ctx, min(1, h.warmup), min(h.probes, 20), ours, bare)
	if err != nil {
		return bench.Row{}, err
	}
	row := bench.Compare("first run with 20 wheels, installation included", "pip and python", a, b, 1.3)
	row.Note = fmt.Sprintf("%d files each; the same index on the loopback", wheelFiles)
	return row, nil
}

// together compares eight identical first runs at once with one.
func (h *packageHome) together(ctx context.Context, names []string) (bench.Row, error) {
	several := func(count int) bench.Run {
		return func(_ context.Context, number int) (bench.Sample, error) {
			layers := "together" + strconv.Itoa(number)
			before := h.asked.Load()
			return timed(func() error {
				var all sync.WaitGroup
				failed := make([]error, count)
				for i := range count {
					all.Go(func() {
						failed[i] = h.cli(layers, "--deps", strings.Join(names, ","), "--lang", "python", "--code", "import pkg00").run()
					})
				}
				all.Wait()
				return errors.Join(failed...)
			}, func() error {
				if n := h.asked.Load() - before; n != wheels {
					return fmt.Errorf("%d archives were downloaded by %d runs, in place of %d", n, count, wheels)
				}
				return removal.Tree(ctx, filepath.Join(h.dir, layers))
			})
		}
	}
	a, b, err := bench.Pairs(ctx, min(1, h.warmup), min(h.probes, 10), several(atOnce), several(1))
	if err != nil {
		return bench.Row{}, err
	}
	row := bench.Compare(fmt.Sprintf("%d identical first runs at once", atOnce), "one", a, b, 0)
	row.Note = "each archive was downloaded once"
	return row, nil
}
