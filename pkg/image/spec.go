package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// The documents of an image, with the fields that matter here: https://github.com/opencontainers/image-spec.

const (
	typeManifest       = "application/vnd.oci.image.manifest.v1+json"
	typeIndex          = "application/vnd.oci.image.index.v1+json"
	typeConfig         = "application/vnd.oci.image.config.v1+json"
	typeLayer          = "application/vnd.oci.image.layer.v1.tar"
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"

	annotationRefName        = "org.opencontainers.image.ref.name"
	annotationContainerdName = "io.containerd.image.name"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

func (p platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// matches reports whether this platform is the wanted one, with or without its variant.
func (p platform) matches(want string) bool {
	return p.String() == want || p.OS+"/"+p.Architecture == want
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Manifests     []descriptor `json:"manifests"`
}

type configFile struct {
	Created      *time.Time `json:"created,omitempty"`
	Architecture string     `json:"architecture"`
	OS           string     `json:"os"`
	Variant      string     `json:"variant,omitempty"`
	Config       struct {
		User       string            `json:"User,omitempty"`
		Env        []string          `json:"Env,omitempty"`
		Entrypoint []string          `json:"Entrypoint,omitempty"`
		Cmd        []string          `json:"Cmd,omitempty"`
		WorkingDir string            `json:"WorkingDir,omitempty"`
		Labels     map[string]string `json:"Labels,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

func (c *configFile) platform() platform { return platform{c.Architecture, c.OS, c.Variant} }

func (c *configFile) image() Image {
	img := Image{
		Platform: c.platform().String(),
		Config: Config{
			Env: c.Config.Env, Workdir: c.Config.WorkingDir, User: c.Config.User,
			Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, Labels: c.Config.Labels,
		},
	}
	if c.Created != nil {
		img.Created = c.Created.UTC()
	}
	return img
}

// plainConfig returns the configuration of an image without one. It has no time, so that equal files have equal ids.
func plainConfig(c Config) []byte {
	var f configFile
	f.Architecture, f.OS = runtime.GOARCH, "linux"
	f.Config.User, f.Config.Env, f.Config.Entrypoint, f.Config.Cmd = c.User, c.Env, c.Entrypoint, c.Cmd
	f.Config.WorkingDir, f.Config.Labels = c.Workdir, c.Labels
	f.RootFS.Type = "layers"
	text, err := json.Marshal(f)
	if err != nil {
		panic(err) // can not happen: strings only
	}
	return text
}

func parseManifest(text []byte) (*manifest, error) {
	if len(text) > maxManifest {
		return nil, fmt.Errorf("manifest: %d bytes are too many", len(text))
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	switch {
	case m.SchemaVersion != 2:
		return nil, fmt.Errorf("manifest: schema version %d is not known here, only 2 is", m.SchemaVersion)
	case m.MediaType != "" && m.MediaType != typeManifest && m.MediaType != typeDockerManifest:
		return nil, fmt.Errorf("manifest: %q is not an image", shorten(m.MediaType))
	}
	for _, d := range append([]descriptor{m.Config}, m.Layers...) {
		if _, err := digestHex(d.Digest); err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
		if d.Size < 0 {
			return nil, fmt.Errorf("manifest: %s has %d bytes", d.Digest, d.Size)
		}
	}
	for _, l := range m.Layers {
		if err := checkLayerType(l.MediaType); err != nil {
			return nil, fmt.Errorf("manifest: layer %s: %w", l.Digest, err)
		}
	}
	return &m, nil
}

// checkLayerType refuses types without files: signatures, attestations and other artefacts that registries store as images.
func checkLayerType(t string) error {
	switch {
	case t == "":
		return nil
	case strings.Contains(t, "encrypted"):
		return fmt.Errorf("%q: encrypted layers can not be read here", shorten(t))
	case !strings.Contains(t, ".tar"):
		return fmt.Errorf("%q is no archive of files", shorten(t))
	}
	return nil
}

func parseConfig(text []byte) (*configFile, error) {
	if len(text) > maxConfig {
		return nil, fmt.Errorf("configuration: %d bytes are too many", len(text))
	}
	var c configFile
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if c.OS == "" {
		c.OS = "linux"
	}
	if c.OS != "linux" {
		return nil, fmt.Errorf("the image is for %q, and only linux runs here", shorten(c.OS))
	}
	for _, d := range c.RootFS.DiffIDs {
		if _, err := digestHex(d); err != nil {
			return nil, fmt.Errorf("configuration: diff id: %w", err)
		}
	}
	return &c, nil
}

// withDiffIDs adds missing diff ids to a configuration and keeps the rest.
func withDiffIDs(text []byte, diffIDs []string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if fields == nil {
		return nil, errors.New("configuration: it is null")
	}
	rootfs, err := json.Marshal(map[string]any{"type": "layers", "diff_ids": diffIDs})
	if err != nil {
		return nil, err
	}
	fields["rootfs"] = rootfs
	for name, value := range map[string]string{"os": "linux", "architecture": runtime.GOARCH} {
		if v := fields[name]; len(v) == 0 || bytes.Equal(v, []byte(`""`)) {
			fields[name] = json.RawMessage(`"` + value + `"`)
		}
	}
	return json.Marshal(fields)
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return digestPrefix + hex.EncodeToString(sum[:])
}
