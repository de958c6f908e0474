package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// maxParallel is how many layers are fetched at a time.
const maxParallel = 4

// Add stores an image: it fetches the layers that the store lacks, several at a time; checks digests, sizes and diff ids; unpacks
// each layer after those below it; and only then makes the image visible under its names. An image that the store already has
// gets the names.
func (s *Store) Add(ctx context.Context, src Source) (*Image, error) {
	img, err := s.add(ctx, src)
	if err != nil {
		op := "add image"
		if len(src.Names) > 0 {
			op += " " + shorten(src.Names[0])
		}
		return nil, failed(op, err)
	}
	return img, nil
}

func (s *Store) add(ctx context.Context, src Source) (img *Image, err error) {
	names, err := normalizeAll(src.Names)
	if err != nil {
		return nil, err
	}
	in, err := s.check(src)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	content, err := s.lock(contentLock, true, contentTimeout)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	_ = s.collectDead(ctx) // leftovers of other processes; the next call removes the rest
	for range 3 {
		if err := s.takeIn(ctx, in); err != nil {
			return nil, err
		}
		if err = s.show(in, names); !errors.Is(err, errRootGone) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return &in.record.Image, s.syncRoots()
}

func normalizeAll(names []string) ([]string, error) {
	var all []string
	for _, name := range names {
		ref, err := ParseReference(name)
		if err != nil {
			return nil, err
		}
		if ref.Digest != "" {
			ref.Digest = "" // every image is found by its digest anyway
			if ref.Tag == "" {
				continue
			}
		}
		all = append(all, ref.String())
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// incoming is an image while it is added.
type incoming struct {
	Source
	diffIDs []string // nil: not known yet
	record  record
	work    *work // has the unpacked root until it is in its place
}

// check compares the parts of a source with each other.
func (s *Store) check(src Source) (*incoming, error) {
	in := &incoming{Source: src}
	for _, digest := range src.Indexes {
		if _, err := digestHex(digest); err != nil {
			return nil, fmt.Errorf("index: %w", err)
		}
	}
	in.Layers = slices.Clone(src.Layers)
	if most := s.Limits.complete().Layers; len(in.Layers) > most {
		return nil, fmt.Errorf("it has %d layers, and %d are allowed", len(in.Layers), most)
	}
	if in.Config == nil {
		if in.Manifest != nil {
			return nil, errors.New("there is a manifest and no configuration")
		}
		in.Config = plainConfig(Config{})
	}
	c, err := parseConfig(in.Config)
	if err != nil {
		return nil, err
	}
	if c.RootFS.DiffIDs != nil {
		in.diffIDs = c.RootFS.DiffIDs
		if len(in.diffIDs) != len(in.Layers) {
			return nil, fmt.Errorf("the configuration speaks of %d layers, and there are %d", len(in.diffIDs), len(in.Layers))
		}
	}
	if in.Manifest == nil {
		return in, nil
	}
	m, err := parseManifest(in.Manifest)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Config.Digest != digestOf(in.Config) || m.Config.Size != int64(len(in.Config)):
		return nil, fmt.Errorf("the configuration is %s with %d bytes, and the manifest says %s with %d", digestOf(in.Config), len(in.Config),
			m.Config.Digest, m.Config.Size)
	case len(m.Layers) != len(in.Layers):
		return nil, fmt.Errorf("the manifest speaks of %d layers, and there are %d", len(m.Layers), len(in.Layers))
	case in.diffIDs == nil && len(m.Layers) > 0:
		return nil, errors.New("the configuration has no diff ids")
	}
	for i, d := range m.Layers {
		l := &in.Layers[i]
		if l.Digest != "" && l.Digest != d.Digest || l.Size != 0 && l.Size != d.Size {
			return nil, fmt.Errorf("layer %d is %s with %d bytes, and the manifest says %s with %d", i+1, l.Digest, l.Size, d.Digest, d.Size)
		}
		l.Digest, l.Size, l.MediaType = d.Digest, d.Size, d.MediaType
	}
	return in, nil
}

// takeIn fetches and unpacks the missing layers, and completes the record.
func (s *Store) takeIn(ctx context.Context, in *incoming) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var fetching sync.WaitGroup
	defer fetching.Wait()
	defer cancel()
	arrivals := s.fetchAll(ctx, in.Layers, min(cmp.Or(max(in.Parallel, 0), maxParallel), maxParallel), &fetching)

	var u *unpacker
	if in.work == nil && !s.hasRoot(in) {
		if in.work, err = s.newWork(); err != nil {
			return err
		}
		if u, err = s.newUnpacker(in.work.dir); err != nil {
			in.drop()
			return err
		}
		defer u.close()
	}
	parts, err := s.unpackAll(ctx, in, u, arrivals)
	if err == nil && u != nil {
		err = u.seal(ctx)
	}
	if err == nil {
		err = s.describe(in, parts)
	}
	if err == nil && u != nil {
		in.record.Size = u.bytes
	}
	if err != nil {
		in.drop()
	}
	return err
}

func (in *incoming) drop() {
	if in.work != nil {
		in.work.close()
		in.work = nil
	}
}

// hasRoot reports whether the image is already unpacked.
func (s *Store) hasRoot(in *incoming) bool {
	if in.diffIDs == nil {
		return false
	}
	old, err := s.readRecord(digestOf(in.Config))
	if err != nil {
		return false
	}
	l, err := s.lease(old.ID[len(digestPrefix):])
	if err != nil {
		return false
	}
	_ = l.Close()
	if len(old.Parts) != len(in.diffIDs) { // both have the same configuration
		return false
	}
	in.record = *old
	return true
}

// arrival is a fetched layer, or the error.
type arrival struct {
	part
	err error
}

// fetchAll fetches layers, the lowest first, and sends each when it is complete.
func (s *Store) fetchAll(ctx context.Context, layers []Layer, parallel int, fetching *sync.WaitGroup) []chan arrival {
	arrivals := make([]chan arrival, len(layers))
	slots := make(chan struct{}, parallel)
	for i := range layers {
		arrivals[i] = make(chan arrival, 1)
	}
	fetching.Go(func() {
		for i, l := range layers {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			fetching.Go(func() {
				p, err := s.fetch(ctx, l)
				arrivals[i] <- arrival{p, err}
				<-slots
			})
		}
	})
	return arrivals
}

// unpackAll unpacks layers in order, as they arrive. Without an unpacker it only compares them with what is unpacked.
func (s *Store) unpackAll(ctx context.Context, in *incoming, u *unpacker, arrivals []chan arrival) ([]part, error) {
	var parts []part
	for i, arrived := range arrivals {
		var a arrival
		select {
		case a = <-arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if a.err != nil {
			return nil, a.err
		}
		p := a.part
		if in.diffIDs != nil {
			p.DiffID = in.diffIDs[i]
		}
		var err error
		if u != nil {
			p, err = s.unpackPart(ctx, u, p)
		} else {
			p, err = s.sameFiles(ctx, p, in.record.Parts[i])
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// sameFiles checks that a layer of an unpacked image has the unpacked content, in any compression. The configuration of an image
// is public, so a source could send other layers with it.
func (s *Store) sameFiles(ctx context.Context, p, old part) (part, error) {
	if p.Digest == old.Digest {
		p.Unpacked = old.Unpacked
		return p, nil
	}
	limit := s.Limits.complete().Bytes
	return s.readPart(ctx, p, limit+headroom(limit), func(*stream) error { return nil })
}

// describe stores the configuration and the manifest, writes missing ones, and completes the record.
func (s *Store) describe(in *incoming, parts []part) error {
	var err error
	if in.diffIDs == nil {
		in.diffIDs = []string{}
		for _, p := range parts {
			in.diffIDs = append(in.diffIDs, p.DiffID)
		}
		if in.Config, err = withDiffIDs(in.Config, in.diffIDs); err != nil {
			return err
		}
	}
	c, err := parseConfig(in.Config)
	if err != nil {
		return err
	}
	size := in.record.Size
	in.record = record{Image: c.image(), Parts: parts}
	in.record.Size, in.record.Layers = size, []string{}
	for i := range parts {
		if parts[i].MediaType == "" {
			parts[i].MediaType = s.layerType(parts[i])
		}
		in.record.Layers = append(in.record.Layers, parts[i].Digest)
	}
	if in.record.ID, err = s.putBlob(in.Config); err != nil {
		return err
	}
	if in.Manifest == nil {
		if in.Manifest, err = newManifest(in.Config, parts); err != nil {
			return err
		}
	}
	if in.record.Digest, err = s.putBlob(in.Manifest); err != nil {
		return err
	}
	in.record.Added = time.Now().UTC().Truncate(time.Second)
	return syncDir(s.path(blobsDir))
}

func (s *Store) layerType(p part) string {
	if p.Digest == p.DiffID {
		return typeLayer
	}
	blob, err := s.openBlob(p.Digest)
	if err != nil {
		return typeLayer
	}
	defer blob.Close()
	var head [6]byte
	n, _ := io.ReadFull(blob, head[:]) // an empty blob is not compressed
	if packed, err := compressionOf(head[:n]); err == nil && packed != Plain {
		return typeLayer + "+" + string(packed)
	}
	return typeLayer
}

func newManifest(config []byte, parts []part) ([]byte, error) {
	m := manifest{
		SchemaVersion: 2, MediaType: typeManifest, Layers: []descriptor{},
		Config: descriptor{MediaType: typeConfig, Digest: digestOf(config), Size: int64(len(config))},
	}
	for _, p := range parts {
		m.Layers = append(m.Layers, descriptor{MediaType: p.MediaType, Digest: p.Digest, Size: p.Size})
	}
	return json.Marshal(m)
}

// errRootGone means that the root to reuse has been removed meanwhile.
var errRootGone = errors.New("the unpacked image was removed meanwhile")

// show makes an image visible: its root, then its record, then its names.
func (s *Store) show(in *incoming, names []string) error {
	defer in.drop()
	index, err := s.lock(indexLock, false, indexTimeout)
	if err != nil {
		return err
	}
	defer index.Close()
	id := in.record.ID
	if in.work != nil {
		if err := s.showRoot(in.work, id); err != nil {
			return err
		}
	} else if !s.hasRoot(&incoming{Source: in.Source, diffIDs: in.diffIDs}) {
		return errRootGone
	}
	in.record.Indexes = slices.Clone(in.Indexes)
	if old, err := s.readRecord(id); err == nil {
		if old.Digest != in.record.Digest {
			if err := s.removeName("@"+old.Digest, id); err != nil {
				return err
			}
		}
		in.record.Added = old.Added
		in.record.Indexes = append(in.record.Indexes, old.Indexes...)
	}
	slices.Sort(in.record.Indexes)
	in.record.Indexes = slices.Compact(in.record.Indexes)
	in.record.Names = nil // names are stored elsewhere
	text, err := json.Marshal(in.record)
	if err != nil {
		return err
	}
	if err := writeFile(s.path(imagesDir, id[len(digestPrefix):]+".json"), text); err != nil {
		return err
	}
	for _, name := range append(in.record.digestNames(), names...) {
		if err := s.writeName(name, id); err != nil {
			return err
		}
	}
	// As it is now: another process may change it before the caller reads it.
	if in.record.Names, err = s.namesOf(id); err != nil {
		return err
	}
	return syncDir(s.path(namesDir))
}
