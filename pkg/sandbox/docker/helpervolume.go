package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// helperVariable names the environment variable with the path of the helper.
const helperVariable = "SANDBOX_RUN_HELPER"

// maxHelper bounds the size of a helper.
const maxHelper = 64 << 20

// findHelper reads the helper for an architecture: named, beside this executable, or in a library directory beside it.
func (b *Backend) findHelper(arch string) ([]byte, error) {
	name := "sandbox-helper-linux-" + arch
	var places []string
	for _, p := range []string{b.opts.Helper, os.Getenv(helperVariable)} {
		if p != "" {
			places = []string{p}
			break
		}
	}
	if len(places) == 0 {
		if self, err := os.Executable(); err == nil {
			dir := filepath.Dir(self)
			places = []string{filepath.Join(dir, name), filepath.Join(dir, "..", "lib", "sandbox-run", name)}
			if runtime.GOOS == "linux" && runtime.GOARCH == arch {
				places = append(places, filepath.Join(dir, helperFile), filepath.Join(dir, "..", "lib", "sandbox-run", helperFile))
			}
		}
	}
	var errs []error
	for _, p := range places {
		text, err := readHelper(p, arch)
		if err == nil {
			return text, nil
		}
		errs = append(errs, err)
	}
	return nil, &sandbox.Error{
		Backend: Name, Op: "find the helper of containers", Stage: "helper", Err: errors.Join(errs...),
		Hint: "put " + name + " beside sandbox-rund (CGO_ENABLED=0 GOOS=linux GOARCH=" + arch + " go build -o " + name +
			" ./cmd/sandbox-helper), or name it in " + helperVariable,
	}
}

// readHelper reads an executable and refuses one that could not start in a container of that architecture.
func readHelper(path, arch string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxHelper {
		return nil, fmt.Errorf("%s: not an executable of less than %d bytes", path, maxHelper)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
		return nil, fmt.Errorf("%s: made for %v; the daemon's machine is %s", path, f.Machine, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s: not linked statically (CGO_ENABLED=0)", path)
		}
	}
	return text, nil
}

// helperVolume returns the daemon's volume with the helper, filled if necessary. All containers of a version share one;
// no process in them can write to it.
func (b *Backend) helperVolume(ctx context.Context, d *daemon, image string) (string, error) {
	d.helper.Lock()
	defer d.helper.Unlock()
	if d.helper.volume != "" {
		return d.helper.volume, nil
	}
	if d.info.OSType != "" && d.info.OSType != "linux" || d.arch == "" {
		return "", unsupported(fmt.Sprintf("the daemon's containers are of %s on %s; Linux on amd64 or arm64 is needed", d.info.OSType,
			d.info.Architecture), "switch it to Linux containers")
	}
	text, err := b.findHelper(d.arch)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	name := "sandbox-run-helper-" + digest[:16]
	if v, err := d.VolumeInspect(ctx, name, client.VolumeInspectOptions{}); err == nil {
		if v.Volume.Labels[labelHelper] != digest {
			return "", failure("use volume "+name, "helper", errors.New("it has not the label of this helper; remove it: docker volume rm "+name))
		}
		if !d.helper.doubted {
			d.helper.volume = name
			return name, nil
		}
	} else if !isGone(err) {
		return "", failure("look for volume "+name, "helper", err)
	} else if _, err := d.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name,
		Labels: map[string]string{labelHelper: digest}}); err != nil {
		return "", failure("create volume "+name, "helper", err)
	}
	if err := b.fillVolume(ctx, d, image, name, text); err != nil {
		return "", err
	}
	d.helper.volume, d.helper.doubted = name, false
	return name, nil
}

// distrustVolume records that a container has found its volume empty, so that the next one fills it.
func (d *daemon) distrustVolume() {
	d.helper.Lock()
	defer d.helper.Unlock()
	d.helper.volume, d.helper.doubted = "", true
}

// fillVolume puts the helper into a volume, through a container that is never started.
func (b *Backend) fillVolume(ctx context.Context, d *daemon, image, volume string, text []byte) error {
	config := &container.Config{
		Image: image, Entrypoint: []string{helperDir + "/" + helperFile}, Cmd: []string{},
		Labels: map[string]string{labelOwner: b.registration.name, labelPlace: b.registration.place()},
	}
	host := &container.HostConfig{NetworkMode: "none",
		Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: helperDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}}
	id, err := b.create(ctx, d, config, host)
	if err != nil {
		return explainCreate(&settings{Image: image}, err)
	}
	defer func() { _ = d.forceRemove(context.WithoutCancel(ctx), id) }()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: helperFile, Mode: 0o555, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err == nil {
		_, err = d.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: helperDir, Content: &archive})
	}
	return failure("put the helper into volume "+volume, "helper", err)
}
