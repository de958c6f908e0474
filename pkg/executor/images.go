package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// ownImages begins the names of the images that this project defines; what follows is what `image build` calls them.
const ownImages = "sandbox-run/"

// defaultImages are what languages are run on where the machine has no toolchain for them, and with backends that show nothing
// of the host. Options.DefaultImages goes first.
func defaultImages() map[string]string {
	return map[string]string{
		"python":     ownImages + "python",
		"javascript": ownImages + "node",
		"typescript": ownImages + "typescript",
		"go":         ownImages + "go",
		"rust":       ownImages + "rust",
		"java":       ownImages + "java",
		"shell":      ownImages + "polyglot",
		"sql":        ownImages + "polyglot",
	}
}

// noDefault in the place of an image means that a language has none.
const noDefault = "none"

// defaultImage is the image of a language; "" where it has none.
func (e *Executor) defaultImage(l *Language) string {
	ref, own := e.opts.DefaultImages[l.Name]
	switch {
	case own && ref == noDefault:
		return ""
	case own && ref != "":
		return ref
	case l.Image != "":
		return l.Image
	case l.custom != nil:
		return ""
	}
	return defaultImages()[l.Name]
}

// Images is where references are looked up.
type Images interface {
	// Image finds an image that is on this machine, and holds it until it is released. It downloads nothing: for one
	// that is not here the error is of kind sandbox.ErrNotFound.
	Image(ctx context.Context, ref string) (*Image, error)
}

// Image is one that sandboxes can stand on, for as long as it is held.
type Image struct {
	sandbox.ImageInfo
	Dir string // where it lies unpacked; empty for one that the backend keeps
	// Release lets go of it. Sandboxes that stand on it are gone by then. Nil has nothing to do.
	Release func()
}

func (i *Image) release() {
	if i != nil && i.Release != nil {
		i.Release()
	}
}

// LookUpImage finds an image for sandboxes of a manager: with the backend, if that keeps its own, or else among images.
func LookUpImage(ctx context.Context, m *sandbox.Manager, images Images, ref string) (*Image, error) {
	var (
		img *Image
		err error
	)
	keeper, keeps := m.Backend().(sandbox.ImageKeeper)
	switch {
	case keeps:
		var info sandbox.ImageInfo
		info, err = keeper.LookUp(ctx, ref)
		img = &Image{ImageInfo: info}
	case images == nil:
		return nil, &sandbox.Error{Op: "image", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("image %q: there is no store of images", ref)}
	default:
		img, err = images.Image(ctx, ref)
	}
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		return nil, &NoImage{Reference: ref, Backend: keptBy(m), Err: err}
	case err != nil:
		return nil, err
	}
	if img.Reference == "" {
		img.Reference = ref
	}
	return img, nil
}

// keptBy names the backend that keeps images itself; "" for the others, whose images are ours.
func keptBy(m *sandbox.Manager) string {
	if _, keeps := m.Backend().(sandbox.ImageKeeper); keeps {
		return m.Backend().Name()
	}
	return ""
}

// NoImage is the error for an image that is not here: one that was asked for, or the one that would stand in for a toolchain
// that this machine does not have.
type NoImage struct {
	Reference string
	Backend   string // that keeps its own; "" is the store
	Missing   error  // what it would stand in for; nil for an image that was asked for
	Err       error
}

// Get is the command that would get it, as arguments of sandbox-run; nil where another program has to.
func (n *NoImage) Get() []string {
	if n.Backend != "" {
		return nil
	}
	if build := n.build(); build != nil {
		return build
	}
	return []string{"image", "pull", n.Reference}
}

// build is the command that makes one of our own images, under the name by which it was asked for; nil for another's.
func (n *NoImage) build() []string {
	own, ours := strings.CutPrefix(n.Reference, ownImages)
	if !ours {
		return nil
	}
	own, _, pinned := strings.Cut(own, "@") // what is built is what it is, by digest or not
	name, tag, _ := strings.Cut(own, ":")
	if pinned || tag == "" || tag == "latest" {
		return []string{"image", "build", name}
	}
	return []string{"image", "build", "--tag", n.Reference, name}
}

// How is that command as a person types it.
func (n *NoImage) How() string {
	if get := n.Get(); get != nil {
		return "sandbox-run " + strings.Join(get, " ")
	}
	if build := n.build(); build != nil {
		return fmt.Sprintf("sandbox-run %s && sandbox-run image export %s | docker load", strings.Join(build, " "), n.Reference)
	}
	return "docker pull " + n.Reference
}

func (n *NoImage) Error() string {
	if n.Missing != nil {
		return fmt.Sprintf("%v\n  or, to run it on an image (%s): %s", n.Missing, n.Reference, n.How())
	}
	where := "here"
	if n.Backend != "" {
		where = "among the images of " + n.Backend
	}
	return fmt.Sprintf("image %q is not %s; try: %s", n.Reference, where, n.How())
}

// Unwrap gives what is missing.
func (n *NoImage) Unwrap() []error {
	errs := []error{sandbox.ErrNotFound}
	for _, err := range []error{n.Missing, n.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// provide decides what a job runs on: the image that was asked for; the machine's own toolchain; or, where there is none, the
// language's image if it is here. The caller releases the job's image.
func (e *Executor) provide(ctx context.Context, j *job) error {
	ref := j.req.Image
	var missing error
	if ref == "" {
		keeper := keptBy(e.manager)
		if keeper == "" {
			tool, err := e.Toolchain(ctx, j.lang)
			if err == nil {
				j.tool = tool
				return nil
			}
			if lacks := new(toolchain.Missing); !errors.As(err, &lacks) {
				return err
			}
			missing = err
		}
		if ref = e.defaultImage(j.lang); ref == "" || keeper == "" && e.opts.Images == nil {
			if missing == nil {
				missing = &sandbox.Error{
					Op: "image", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s shows nothing of this machine, and %s has no image of its own", keeper, j.lang.Title),
					Hint: "--image REF",
				}
			}
			return missing
		}
	}
	img, err := LookUpImage(ctx, e.manager, e.opts.Images, ref)
	if err != nil {
		if none := new(NoImage); errors.As(err, &none) && missing != nil {
			none.Missing = missing
		} else if missing != nil {
			return errors.Join(missing, err)
		}
		return err
	}
	j.image = img
	if missing != nil {
		j.notes = append(j.notes, fmt.Sprintf("there is no %s on this machine; it ran on the image %s", j.lang.Title, img.Reference))
	}
	j.tool, err = e.toolchainIn(ctx, j)
	return err
}

// toolchainIn finds what a language is run by in an image; nil for one that needs nothing.
func (e *Executor) toolchainIn(ctx context.Context, j *job) (*toolchain.Toolchain, error) {
	if j.lang.custom == nil && j.lang.Toolchain == "" {
		return nil, nil
	}
	a := &asker{manager: e.manager, spec: sandbox.Spec{Require: j.req.Policy.Require, Scratch: sandbox.ScratchMemory, Limits: askLimits(e.manager.Machine())}}
	j.image.Apply(&a.spec)
	a.spec.Workdir = "/"
	defer a.close(ctx)
	img := toolchain.Image{ID: j.image.ID, Name: j.image.Reference, Dir: j.image.Dir, Path: a.spec.Env["PATH"], Ask: a.ask}
	a.begin = func() func() {
		return prepareHook(e.opts.OnPrepare).begin("looking for " + j.lang.Title + " in the image " + j.image.Reference)
	}
	if j.lang.custom != nil {
		return e.opts.Toolchains.CustomIn(ctx, j.lang.custom.toolchain, img)
	}
	return e.opts.Toolchains.FindIn(ctx, j.lang.Toolchain, img)
}

// Apply makes a sandbox stand on the image: its root, the variables of its that are harmless, and its directory unless the spec
// names one. What the spec has goes first. It reports what it left out that somebody might miss.
func (i *Image) Apply(s *sandbox.Spec) (notes []string) {
	s.Root.Dir, s.Root.From = i.Dir, i.ImageRef
	if i.Dir == "" {
		s.Root.Image = i.Reference
	}
	env := imageEnv(i.Env)
	for k, v := range s.Env {
		env[k] = v
	}
	s.Env = env
	if s.Workdir == "" && i.Workdir != "" && path.Clean(i.Workdir) != "/" {
		if dir, why := i.workdir(); why == "" {
			s.Workdir = dir
		} else {
			notes = append(notes, fmt.Sprintf("the image's directory %s: %s; the working directory is %s", i.Workdir, why, sandbox.WorkspaceDir))
		}
	}
	return notes
}

// workdir is the image's directory, or why it can not be used by who has the sandbox's user.
func (i *Image) workdir() (dir, why string) {
	dir = path.Clean(i.Workdir)
	if !path.IsAbs(dir) {
		return "", "it is not an absolute path"
	}
	if i.Dir == "" {
		return dir, "" // the backend knows
	}
	for _, own := range append(sandbox.ScratchDirs(), "/proc", "/dev", "/sys") {
		if dir == own {
			return dir, ""
		}
	}
	root, err := os.OpenRoot(i.Dir)
	if err != nil {
		return "", err.Error()
	}
	defer root.Close()
	for at := dir; at != "/"; at = path.Dir(at) {
		st, err := toolchain.StatIn(root, at)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return "", "it does not exist"
		case err != nil:
			return "", err.Error()
		case !st.IsDir():
			return "", "it is not a directory"
		case st.Mode()&0o001 == 0:
			return "", "it is closed to the sandbox's user"
		}
	}
	return dir, ""
}

// imageEnv are the variables of an image that its sandboxes get. Left out is what the sandbox says better itself, and what
// would have the loader run something before the program.
func imageEnv(all []string) map[string]string {
	env := map[string]string{}
	for _, entry := range all {
		k, v, ok := strings.Cut(entry, "=")
		if !ok || k == "" || strings.ContainsRune(entry, 0) || len(entry) > maxImageVariable || len(env) == maxImageVariables {
			continue
		}
		if slices.Contains(withheld(), k) || slices.ContainsFunc([]string{"LD_", "SANDBOX_RUN_", "XDG_"}, func(stem string) bool {
			return strings.HasPrefix(k, stem) && k != "LD_LIBRARY_PATH"
		}) {
			continue
		}
		env[k] = v
	}
	return env
}

const (
	maxImageVariable  = 32 << 10
	maxImageVariables = 256
)

// withheld are variables that are the sandbox's own: who its user is, and where that one may write. GLIBC_TUNABLES is for the
// loader what LD_… are.
func withheld() []string {
	return []string{"HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "HOSTNAME", "TERM", "TMPDIR", "TMP", "TEMP", "GLIBC_TUNABLES"}
}

// Command is what is run on the image, as Docker has it: arguments follow the image's entrypoint; without any, the image's own
// command does. An entrypoint that is given takes the place of both; an empty one leaves the arguments alone.
func (i *Image) Command(entrypoint *string, args []string) ([]string, error) {
	first, rest := i.Entrypoint, args
	if entrypoint != nil {
		first = nil
		if *entrypoint != "" {
			first = []string{*entrypoint}
		}
	} else if len(args) == 0 {
		rest = i.Cmd
	}
	command := slices.Concat(first, rest)
	if len(command) == 0 {
		return nil, &sandbox.Error{
			Op: "command", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("none is given, and the image %s has none of its own", i.Reference),
			Hint: "sandbox-run exec --image " + i.Reference + " -- ls -la /",
		}
	}
	return command, nil
}

// StoredImages are those of a store, which is opened when one is asked for; nil without an error is no store yet.
func StoredImages(open func() (*image.Store, error)) Images { return storedImages{open} }

type storedImages struct {
	open func() (*image.Store, error)
}

// Image leases an image of the store.
func (s storedImages) Image(_ context.Context, ref string) (*Image, error) {
	store, err := s.open()
	if err != nil {
		return nil, err
	}
	var img *image.Image
	if store == nil {
		err = image.ErrNotFound
	} else {
		img, err = store.Lookup(ref)
	}
	switch {
	case errors.Is(err, image.ErrNotFound):
		return nil, &sandbox.Error{Op: "image", Kind: sandbox.ErrNotFound, Err: fmt.Errorf("image %q is not here", ref)}
	case err != nil:
		return nil, &sandbox.Error{Op: "image", Kind: sandbox.ErrInvalid, Err: err}
	}
	if err := runsHere(img.Platform); err != nil {
		return nil, &sandbox.Error{Op: "image " + ref, Kind: sandbox.ErrUnsupported, Err: err, Hint: "sandbox-run image pull --platform linux/" + runtime.GOARCH + " " + ref}
	}
	lease, err := store.Use(img)
	if err != nil {
		return nil, &sandbox.Error{Op: "image " + ref, Err: err}
	}
	c := &img.Config
	return &Image{
		ImageInfo: sandbox.ImageInfo{
			ImageRef: sandbox.ImageRef{Reference: ref, ID: img.ID, Digest: img.Digest},
			Env:      c.Env, Workdir: c.Workdir, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		},
		Dir: lease.Dir(), Release: func() { _ = lease.Close() }, // a lock that its file's end would give back too
	}, nil
}

// emulators are what the kernel calls the programs that run those of another processor.
var emulators = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64", "s390x": "s390x", "ppc64le": "ppc64le", "loong64": "loongarch64"}

// runsHere refuses an image whose programs this machine can not execute: all that would be seen of it is an exec format error.
func runsHere(platform string) error {
	system, rest, _ := strings.Cut(platform, "/")
	arch, _, _ := strings.Cut(rest, "/")
	switch {
	case system == "linux" && arch == runtime.GOARCH:
		return nil
	case system == "linux" && emulators[arch] != "":
		if _, err := os.Stat("/proc/sys/fs/binfmt_misc/qemu-" + emulators[arch]); err == nil {
			return nil
		}
	}
	return fmt.Errorf("it is for %s, and this machine is linux/%s", platform, runtime.GOARCH)
}

// userImages is the store of whoever runs this: where SANDBOX_RUN_IMAGES says, or in the usual place.
func userImages() (*image.Store, error) {
	dir := os.Getenv("SANDBOX_RUN_IMAGES")
	if dir == "" {
		var err error
		if dir, err = image.DefaultDir(); err != nil {
			return nil, err
		}
	} else if !filepath.IsAbs(dir) {
		return nil, sandbox.Invalid("SANDBOX_RUN_IMAGES", "%q is not an absolute path", dir)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // looking makes nothing
	}
	return image.Open(dir)
}

// asker runs programs of an image, to be told what they are: in one sandbox, which is made when the first is asked.
type asker struct {
	manager *sandbox.Manager
	spec    sandbox.Spec
	begin   func() (done func()) // told that it takes a while

	once sync.Once
	id   string
	err  error
	done func()
}

// askLimits are what a program may use to say what it is.
func askLimits(m sandbox.Machine) sandbox.Limits {
	l, _ := sandbox.Limits{Wall: 20 * time.Second, Memory: 512 * sandbox.MiB, Processes: 256, CPUs: float64(m.CPUs), Output: 64 * sandbox.KiB}.Clamp(m)
	return l
}

func (a *asker) ask(ctx context.Context, args ...string) (toolchain.Answer, error) {
	a.once.Do(func() {
		if a.begin != nil {
			a.done = a.begin()
		}
		a.id, a.err = a.manager.Create(ctx, a.spec)
	})
	if a.err != nil {
		return toolchain.Answer{}, a.err
	}
	r, err := a.manager.Run(ctx, a.id, sandbox.Process{Args: args}, sandbox.IO{})
	if err != nil {
		return toolchain.Answer{}, err
	}
	said := toolchain.Answer{Stdout: string(r.Stdout.Bytes()), Stderr: string(r.Stderr.Bytes()), Exit: r.Exit.Code}
	if !r.Success() && (r.Verdict != sandbox.VerdictNonzeroExit || said.Exit == 0) {
		said.Exit = sandbox.CLICode(r.Verdict, r.Exit)
		said.Stderr = strings.TrimSpace(failure(r).Error()) + "\n" + said.Stderr
	}
	return said, ctx.Err()
}

// close removes the sandbox. What can not be removed, the manager's Close finds and reports.
func (a *asker) close(ctx context.Context) {
	if a.id != "" {
		_ = a.manager.Delete(context.WithoutCancel(ctx), a.id)
	}
	if a.done != nil {
		a.done()
	}
}
