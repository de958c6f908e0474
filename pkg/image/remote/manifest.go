package remote

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	maxManifest = 4 << 20 // the common limit of registries
	maxConfig   = 4 << 20
	maxNesting  = 3 // indexes in indexes
)

var (
	sha256Digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

	manifestTypes = []types.MediaType{
		types.OCIImageIndex, types.DockerManifestList, types.OCIManifestSchema1, types.DockerManifestSchema2,
	}
)

// document is a manifest or an index, as the registry sent it.
type document struct {
	bytes  []byte
	digest string // of the bytes
	kind   types.MediaType
}

// fetchManifest fetches a manifest or an index by tag or digest, and checks the digest.
func (c *client) fetchManifest(ctx context.Context, id string) (document, error) {
	var doc document
	err := c.retry(ctx, func(ctx context.Context) error {
		data, header, err := c.fetchSmall(ctx, "manifests/"+id, maxManifest, http.Header{"Accept": {acceptable()}})
		if err != nil {
			return err
		}
		doc = document{bytes: data, digest: digestOf(data)}
		if sha256Digest.MatchString(id) && doc.digest != id {
			return fmt.Errorf("%w: wrong digest: what came for %s is %s", ErrInvalid, id, doc.digest)
		}
		doc.kind, err = kindOf(header.Get("Content-Type"), data)
		return err
	})
	return doc, c.fail("read manifest "+id, err)
}

func acceptable() string {
	var out []string
	for _, t := range manifestTypes {
		out = append(out, string(t))
	}
	return strings.Join(out, ",")
}

// fetchConfig fetches an image's configuration, and checks its size and digest.
func (c *client) fetchConfig(ctx context.Context, desc v1.Descriptor) ([]byte, error) {
	digest := desc.Digest.String()
	var data []byte
	err := c.retry(ctx, func(ctx context.Context) (err error) {
		if data, _, err = c.fetchSmall(ctx, "blobs/"+digest, maxConfig, nil); err != nil {
			return err
		}
		if int64(len(data)) != desc.Size {
			return fmt.Errorf("%w: wrong size: %d bytes, the manifest says %d", ErrInvalid, len(data), desc.Size)
		}
		if got := digestOf(data); got != digest {
			return fmt.Errorf("%w: wrong digest: what came for %s is %s", ErrInvalid, digest, got)
		}
		return nil
	})
	return data, c.fail("read configuration "+digest, err)
}

// fetchSmall fetches at most most bytes into memory.
func (c *client) fetchSmall(ctx context.Context, path string, most int64, header http.Header) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.opts.Stall)
	defer cancel()
	resp, err := c.send(ctx, path, header, http.StatusOK)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		// The request did not allow it, and the size after decompression is unknown.
		return nil, nil, fmt.Errorf("%w: it came compressed (%s)", ErrInvalid, plain(encoding))
	}
	tooLarge := fmt.Errorf("%w: larger than %d bytes", ErrInvalid, most)
	if resp.ContentLength > most {
		return nil, nil, tooLarge
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, nil, tidy(err)
	}
	if int64(len(data)) > most {
		return nil, nil, tooLarge
	}
	return data, resp.Header, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// kindOf returns whether a document is an image or an index. The document counts more than its Content-Type, which static registries get
// wrong. A document that can be read as both is refused, because its digest would name two images.
func kindOf(label string, data []byte) (types.MediaType, error) {
	var shape struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Layers        json.RawMessage `json:"layers"`
		Config        json.RawMessage `json:"config"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(data, &shape); err != nil {
		return "", fmt.Errorf("%w: the manifest is not JSON", ErrInvalid)
	}
	label, _, err := mime.ParseMediaType(label)
	if err != nil {
		label = ""
	}
	header := types.MediaType(label)
	if shape.SchemaVersion == 1 || shape.FSLayers != nil || isSchema1(shape.MediaType) || isSchema1(header) && shape.SchemaVersion != 2 {
		return "", fmt.Errorf("%w: an image of the old format (schema 1); push it again with a present-day tool: "+
			"docker pull it, docker push it, and pull that", ErrUnsupported)
	}
	index, single := shape.Manifests != nil, shape.Layers != nil || shape.Config != nil
	kind := cmp.Or(shape.MediaType, header)
	switch {
	case shape.SchemaVersion != 2:
		return "", fmt.Errorf("%w: a manifest of version %d; 2 is known", ErrUnsupported, shape.SchemaVersion)
	case index && single:
		return "", fmt.Errorf("%w: the manifest can be read as an image and as an index", ErrInvalid)
	case known(shape.MediaType) && known(header) && shape.MediaType.IsIndex() != header.IsIndex():
		return "", fmt.Errorf("%w: the manifest calls itself %s, the registry calls it %s", ErrInvalid, shape.MediaType, header)
	case index && (kind.IsIndex() || !known(kind)):
		return types.OCIImageIndex, nil
	case single && (kind.IsImage() || !known(kind)):
		return types.OCIManifestSchema1, nil
	}
	return "", fmt.Errorf("%w: neither an image nor an index (media type %s)", ErrInvalid, plain(string(kind)))
}

func known(t types.MediaType) bool { return t.IsIndex() || t.IsImage() }

func isSchema1(t types.MediaType) bool {
	return t == types.DockerManifestSchema1 || t == types.DockerManifestSchema1Signed
}

// parseImage parses a manifest, and refuses one that can not be a sandbox's root.
func parseImage(data []byte) (*v1.Manifest, error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: the manifest: %s", ErrInvalid, plain(err.Error()))
	}
	switch m.Config.MediaType {
	case types.OCIConfigJSON, types.DockerConfigJSON:
	default:
		return nil, fmt.Errorf("%w: not a container image but something of the type %q", ErrUnsupported, plain(string(m.Config.MediaType)))
	}
	if err := checkDescriptor("configuration", m.Config, maxConfig); err != nil {
		return nil, err
	}
	if len(m.Layers) == 0 {
		return nil, fmt.Errorf("%w: an image without layers", ErrInvalid)
	}
	var sum int64
	for i, l := range m.Layers {
		what := fmt.Sprintf("layer %d", i+1)
		if err := checkLayer(what, l); err != nil {
			return nil, err
		}
		if sum += l.Size; sum < 0 {
			return nil, fmt.Errorf("%w: the sizes of its layers add up to more than there are bytes", ErrInvalid)
		}
	}
	return &m, nil
}

func checkLayer(what string, l v1.Descriptor) error {
	if !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
		return fmt.Errorf("%w: %s is foreign (%s): it is not in the registry but has to be fetched from elsewhere, which is not done",
			ErrUnsupported, what, l.MediaType)
	}
	if !l.MediaType.IsLayer() {
		return fmt.Errorf("%w: %s has the media type %q", ErrUnsupported, what, plain(string(l.MediaType)))
	}
	return checkDescriptor(what, l, 1<<62)
}

func checkDescriptor(what string, d v1.Descriptor, most int64) error {
	switch digest := d.Digest.String(); {
	case !sha256Digest.MatchString(digest):
		return fmt.Errorf("%w: %s has the digest %q; sha256 is known", ErrUnsupported, what, plain(digest))
	case d.Size < 0 || d.Size > most:
		return fmt.Errorf("%w: %s is said to have %d bytes", ErrInvalid, what, d.Size)
	}
	return nil
}

// found is the manifest of an image, with the digests of the indexes that resolve followed.
type found struct {
	document
	manifest *v1.Manifest
	indexes  []string
}

// resolve follows indexes to the image of a platform.
func (c *client) resolve(ctx context.Context, id string, want v1.Platform) (found, error) {
	var out found
	for range maxNesting {
		doc, err := c.fetchManifest(ctx, id)
		if err != nil {
			return out, err
		}
		op := "read manifest " + id
		if doc.kind.IsImage() {
			out.document = doc
			out.manifest, err = parseImage(doc.bytes)
			return out, c.fail(op, err)
		}
		chosen, err := chooseManifest(doc.bytes, want)
		if err != nil {
			return out, c.fail(op, err)
		}
		out.indexes = append(out.indexes, doc.digest)
		id = chosen.Digest.String()
	}
	return out, c.fail("read manifest "+id, fmt.Errorf("%w: more than %d indexes in one another", ErrInvalid, maxNesting))
}

// checkPlatform compares the platform in an image's configuration with the requested one. Only the configuration has the platform of an
// image without an index.
func checkPlatform(config []byte, want v1.Platform) error {
	var has v1.Platform
	if err := json.Unmarshal(config, &has); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return fmt.Errorf("%w: the configuration: field %q has the wrong type", ErrInvalid, kind.Field)
		}
		return fmt.Errorf("%w: the configuration is not JSON", ErrInvalid)
	}
	if has.OS != "" && has.OS != want.OS || has.Architecture != "" && has.Architecture != want.Architecture {
		return &platformError{want: want, have: []v1.Platform{has}}
	}
	return nil
}
