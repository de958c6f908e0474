package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// ownImages is the prefix of the images that this project defines; `image build` has the rest of the name.
const ownImages = "sandbox-run/"

// noDefault means that a language has no image.
const noDefault = "none"

// defaultImage returns the image of a language for a machine without its toolchain, and for backends that show nothing of the
// host; "" if it has none. Options.DefaultImages takes precedence.
func (e *Executor) defaultImage(l *Language) string {
	ref, own := e.opts.DefaultImages[l.Name]
	switch {
	case own && ref == noDefault:
		return ""
	case own && ref != "":
		return ref
	}
	return l.Image
}

// Images finds images by reference.
type Images interface {
	// Image leases an image on this machine until the caller releases it. It downloads nothing: a missing image is an error of kind
	// sandbox.ErrNotFound.
	Image(ctx context.Context, ref string) (*Image, error)
}

// Image is an image that sandboxes can have as their root until it is released.
type Image = language.Image

// LookUpImage finds an image for sandboxes of a manager: in the backend, if it has an image store of its own, otherwise in
// images.
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
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "image", "", "image %q: there is no store of images", ref)
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

// keptBy returns the name of a backend that has its own image store; "" for the others.
func keptBy(m *sandbox.Manager) string {
	if _, keeps := m.Backend().(sandbox.ImageKeeper); keeps {
		return m.Backend().Name()
	}
	return ""
}

// NoImage is the error for an image that is not on this machine: a requested one, or the one that replaces a missing toolchain.
type NoImage struct {
	Reference string
	Backend   string // the backend with its own image store; "": the store of sandbox-run
	Missing   error  // the missing toolchain; nil for a requested image
	Err       error
}

// Get returns the command that gets the image, as arguments of sandbox-run; nil if another program has to get it.
func (n *NoImage) Get() []string {
	if n.Backend != "" {
		return nil
	}
	if build := n.build(); build != nil {
		return build
	}
	return []string{"image", "pull", n.Reference}
}

// build returns the command that builds an image of this project under the requested name; nil for other images.
func (n *NoImage) build() []string {
	own, ours := strings.CutPrefix(n.Reference, ownImages)
	if !ours {
		return nil
	}
	own, _, pinned := strings.Cut(own, "@") // a build does not depend on the digest
	name, tag, _ := strings.Cut(own, ":")
	if pinned || tag == "" || tag == "latest" {
		return []string{"image", "build", name}
	}
	return []string{"image", "build", "--tag", n.Reference, name}
}

// How returns that command as a person types it.
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

// Unwrap returns the errors about what is missing.
func (n *NoImage) Unwrap() []error {
	errs := []error{sandbox.ErrNotFound}
	for _, err := range []error{n.Missing, n.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// chooseRoot decides on what a job runs: on the requested image; with the machine's toolchain; or, without one, on the language's
// image if it is on this machine. The caller releases the job's image.
func (e *Executor) chooseRoot(ctx context.Context, j *job) error {
	ref := j.req.Image
	var missing error
	if ref == "" {
		keeper := keptBy(e.manager)
		if keeper == "" {
			tool, err := e.Toolchain(ctx, j.Language)
			if err == nil {
				j.Tool = tool
				return nil
			}
			if none := new(toolchain.Missing); !errors.As(err, &none) {
				return err
			}
			missing = err
		}
		if ref = e.defaultImage(j.Language); ref == "" || keeper == "" && e.opts.Images == nil {
			if missing == nil {
				missing = &sandbox.Error{
					Op: "image", Kind: sandbox.ErrUnsupported, Hint: "--image REF",
					Err: fmt.Errorf("%s shows nothing of this machine, and %s has no image of its own", keeper, j.Language.Title),
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
	j.Image = img
	if missing != nil {
		j.notes = append(j.notes, fmt.Sprintf("there is no %s on this machine; it ran on the image %s", j.Language.Title, img.Reference))
	}
	j.Tool, err = e.toolchainIn(ctx, j)
	return err
}

// toolchainIn finds the toolchain of a language in an image; nil for a language that needs none.
func (e *Executor) toolchainIn(ctx context.Context, j *job) (*toolchain.Toolchain, error) {
	if j.Language.Toolchain == nil {
		return nil, nil
	}
	q := &imageQuery{
		manager: e.manager,
		spec:    sandbox.Spec{Require: j.req.Policy.Require, Scratch: sandbox.ScratchMemory, Limits: queryLimits(e.manager.Machine())},
	}
	j.Image.Apply(&q.spec)
	q.spec.Workdir = "/"
	defer q.close(ctx)
	q.begin = func() func() {
		return prepared.Hook(e.opts.OnPrepare).Begin("looking for " + j.Language.Title + " in the image " + j.Image.Reference)
	}
	img := toolchain.Image{ID: j.Image.ID, Name: j.Image.Reference, Dir: j.Image.Dir, Path: q.spec.Env["PATH"], Query: q.run}
	return e.opts.Toolchains.FindIn(ctx, j.Language.Toolchain, img)
}

// StoredImages returns the images of a store, which the first request opens; open returns nil without an error if there is no
// store yet.
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
		if img, err = store.Lookup(ref); err == nil && deps.IsLayer(img) {
			err = image.ErrNotFound // packages of one key's runs are no images for others
		}
	}
	switch {
	case errors.Is(err, image.ErrNotFound):
		return nil, sandbox.Errorf(sandbox.ErrNotFound, "image", "", "image %q is not here", ref)
	case err != nil:
		return nil, &sandbox.Error{Op: "image", Kind: sandbox.ErrInvalid, Err: err}
	}
	if err := runsHere(img.Platform); err != nil {
		return nil, &sandbox.Error{Op: "image " + ref, Kind: sandbox.ErrUnsupported, Err: err,
			Hint: "sandbox-run image pull --platform linux/" + runtime.GOARCH + " " + ref}
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
		Dir: lease.Dir(), Release: func() { _ = lease.Close() }, // the end of the process also releases the lock
	}, nil
}

// emulators are the kernel's names of programs that run those of another processor.
var emulators = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64", "s390x": "s390x", "ppc64le": "ppc64le",
	"loong64": "loongarch64"}

// runsHere refuses an image whose programs this machine can not execute: otherwise the only message is an exec format error.
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

// userImages opens the image store of this process's user: at SANDBOX_RUN_IMAGES, or at the default path.
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
		return nil, nil // a lookup does not create a store
	}
	return image.Open(dir)
}

// imageQuery runs programs of an image to get their versions and paths, in one sandbox that the first query creates.
type imageQuery struct {
	manager *sandbox.Manager
	spec    sandbox.Spec
	begin   func() (done func()) // called before the sandbox is created

	once sync.Once
	id   string
	err  error
	done func()
}

// queryLimits are the limits of a queried program.
func queryLimits(m sandbox.Machine) sandbox.Limits {
	l, _ := sandbox.Limits{Wall: 20 * time.Second, Memory: 512 * sandbox.MiB, Processes: 256, CPUs: float64(m.CPUs),
		Output: 64 * sandbox.KiB}.Clamp(m)
	return l
}

func (q *imageQuery) run(ctx context.Context, args ...string) (toolchain.Answer, error) {
	q.once.Do(func() {
		if q.begin != nil {
			q.done = q.begin()
		}
		q.id, q.err = q.manager.Create(ctx, q.spec)
	})
	if q.err != nil {
		return toolchain.Answer{}, q.err
	}
	r, err := q.manager.Run(ctx, q.id, sandbox.Process{Args: args}, sandbox.IO{})
	if err != nil {
		return toolchain.Answer{}, err
	}
	answer := toolchain.Answer{Stdout: string(r.Stdout.Bytes()), Stderr: string(r.Stderr.Bytes()), Exit: r.Exit.Code}
	if !r.Success() && (r.Verdict != sandbox.VerdictNonzeroExit || answer.Exit == 0) {
		answer.Exit = sandbox.CLICode(r.Verdict, r.Exit)
		answer.Stderr = strings.TrimSpace(language.VerdictError(r).Error()) + "\n" + answer.Stderr
	}
	return answer, ctx.Err()
}

// close deletes the sandbox. The manager's Close finds and reports leftovers.
func (q *imageQuery) close(ctx context.Context) {
	if q.id != "" {
		_ = q.manager.Delete(context.WithoutCancel(ctx), q.id)
	}
	if q.done != nil {
		q.done()
	}
}
