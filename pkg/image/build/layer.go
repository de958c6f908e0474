package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// layer describes the compressed layer that writeLayer wrote.
type layer struct {
	digest   string // of the compressed file
	diffID   string // digest of the uncompressed archive
	size     int64  // of the compressed file
	epoch    time.Time
	packages map[string]string // installed packages with their versions
}

// entry is an entry of mmdebstrap's archive, or one that addUser adds.
type entry struct {
	header *tar.Header
	offset int64  // of its content in the archive
	text   []byte // its content, if it differs from the archive
}

// Paths of a root that depend on the machine or on the time, or that no program needs. A directory in emptied stays without its
// content; a path in dropped is left out.
var (
	emptied = []string{
		"dev", "proc", "sys", "run", "tmp", "boot", "media", "mnt", "root", "var/tmp",
		"var/cache", "var/log", "var/lib/apt", "var/lib/systemd", "etc/apt",
		"var/backups", "var/lib/dpkg/updates",
	}
	dropped = []string{
		"etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/mtab", "etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow-",
		"etc/gshadow-",
		"etc/subuid-", "etc/subgid-", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "var/lib/dbus/machine-id",
		"var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/dpkg/triggers/Lock", "var/lib/dpkg/status-old", "var/lib/dpkg/available-old",
		"var/lib/dpkg/diversions-old", "var/lib/dpkg/statoverride-old", "var/lib/shells.state",
	}
)

const (
	maxEntries = 1_000_000
	maxText    = 64 << 20 // of a file that rewrite reads
)

// writeLayer makes a layer from mmdebstrap's archive: sorted, without data of this machine or of this time, and with the sandbox's
// user. A file that is newer than started gets the time of the newest file of a package. If epoch is set, no file is newer than epoch.
func writeLayer(ctx context.Context, from *os.File, to io.Writer, started, epoch time.Time) (*layer, error) {
	entries, err := readEntries(ctx, from)
	if err != nil {
		return nil, err
	}
	l := &layer{}
	if err := rewrite(from, entries, "var/lib/dpkg/status", func(text []byte) ([]byte, error) {
		l.packages, err = parseInstalled(text)
		return text, err
	}); err != nil {
		return nil, err
	}
	if len(l.packages) == 0 {
		return nil, errors.New("the archive that mmdebstrap made has no packages in it")
	}
	l.epoch = epoch
	if epoch.IsZero() {
		for _, e := range entries {
			if t := e.header.ModTime; t.Before(started) && t.After(l.epoch) {
				l.epoch = t
			}
		}
	}
	if err := addUser(from, entries); err != nil {
		return nil, err
	}
	if err := normalizeKeystore(from, entries, l.epoch); err != nil {
		return nil, err
	}

	// By the parts of the path, so that a directory comes before what is in it.
	sorted := slices.SortedFunc(maps.Values(entries), func(a, b *entry) int {
		return slices.Compare(strings.Split(a.header.Name, "/"), strings.Split(b.header.Name, "/"))
	})
	relink(sorted)

	file, plain := sha256.New(), sha256.New()
	counted := &counter{w: io.MultiWriter(to, file)}
	// BestSpeed takes a third of the default level's time for an eighth more bytes. The store unpacks a layer at once, and a layer
	// seldom leaves the machine.
	packed, err := gzip.NewWriterLevel(counted, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(io.MultiWriter(packed, plain))
	for _, e := range sorted {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := w.WriteHeader(normalizeHeader(e.header, l.epoch)); err != nil {
			return nil, fmt.Errorf("%s: %w", e.header.Name, err)
		}
		if _, err := io.Copy(w, e.content(from)); err != nil {
			return nil, fmt.Errorf("%s: %w", e.header.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := packed.Close(); err != nil {
		return nil, err
	}
	l.digest, l.diffID, l.size = digestOf(file.Sum(nil)), digestOf(plain.Sum(nil)), counted.n
	return l, nil
}

func digestOf(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// content returns the content of the entry's file. Links and directories are empty.
func (e *entry) content(from io.ReaderAt) io.Reader {
	switch {
	case e.header.Typeflag != tar.TypeReg:
		return bytes.NewReader(nil)
	case e.text != nil:
		return bytes.NewReader(e.text)
	}
	return io.NewSectionReader(from, e.offset, e.header.Size)
}

// readEntries returns the archive's entries that belong in the layer, by path.
func readEntries(ctx context.Context, from *os.File) (map[string]*entry, error) {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	entries := map[string]*entry{}
	r := tar.NewReader(from)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the archive that mmdebstrap made: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" || !kept(name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
		case tar.TypeLink:
			h.Linkname = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
			if !kept(h.Linkname) {
				return nil, fmt.Errorf("%s is another name of %s, which is not kept", name, h.Linkname)
			}
		case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
			continue // a sandbox makes its own
		default:
			return nil, fmt.Errorf("%s: entries of type %q are not expected in what mmdebstrap made", name, h.Typeflag)
		}
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("the archive has more than %d entries", maxEntries)
		}
		// tar.Reader does not read ahead: the file's offset is that of the content.
		offset, err := from.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		h.Name = name
		entries[name] = &entry{header: h, offset: offset}
	}
}

// kept reports whether a path belongs in a layer.
func kept(name string) bool {
	return !slices.Contains(dropped, name) &&
		!slices.ContainsFunc(emptied, func(dir string) bool { return strings.HasPrefix(name, dir+"/") })
}

// rewrite replaces the content of a file in the archive by the result of edit. It ignores a file that does not exist.
func rewrite(from io.ReaderAt, entries map[string]*entry, name string, edit func([]byte) ([]byte, error)) error {
	e := entries[name]
	if e == nil || e.header.Typeflag != tar.TypeReg {
		return nil
	}
	if e.header.Size > maxText {
		return fmt.Errorf("%s has %d bytes, more than is expected of it", name, e.header.Size)
	}
	text, err := io.ReadAll(e.content(from))
	if err == nil {
		text, err = edit(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	e.text, e.header.Size = text, int64(len(text))
	return nil
}

// addUser adds the sandbox's user and the directories that every sandbox has.
func addUser(from io.ReaderAt, entries map[string]*entry) error {
	for name, line := range map[string]string{
		"etc/passwd": fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", sandbox.UserName, userID, userID, sandbox.HomeDir),
		"etc/group":  fmt.Sprintf("%s:x:%d:\n", sandbox.UserName, userID),
	} {
		if err := rewrite(from, entries, name, func(text []byte) ([]byte, error) { return append(text, line...), nil }); err != nil {
			return err
		}
	}
	for _, dir := range []string{sandbox.WorkspaceDir, sandbox.HomeDir} {
		name := strings.TrimPrefix(dir, "/")
		entries[name] = &entry{header: &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, Uid: userID, Gid: userID}}
	}
	return nil
}

// relink makes the first of several hard links to a file the file, and the others links to it. Sorting may have put another name first.
func relink(sorted []*entry) {
	files := map[string]*entry{} // by the name of the entry with the content
	for _, e := range sorted {
		if e.header.Typeflag == tar.TypeReg {
			files[e.header.Name] = e
		}
	}
	first := map[string]string{}
	for _, e := range sorted {
		original := e.header.Name
		if e.header.Typeflag == tar.TypeLink {
			original = e.header.Linkname
		} else if e.header.Typeflag != tar.TypeReg {
			continue
		}
		file := files[original]
		if file == nil {
			continue // a link to a link or to a missing file: the store reports it
		}
		name := e.header.Name
		if at, ok := first[original]; ok {
			h := *file.header
			h.Typeflag, h.Name, h.Linkname, h.Size = tar.TypeLink, name, at, 0
			e.header = &h
			continue
		}
		first[original] = name
		if e != file {
			h := *file.header
			h.Name = name
			e.header, e.offset, e.text = &h, file.offset, file.text
		}
	}
}

// normalizeHeader returns a header that does not depend on the user or the time of the build. Set-user-id bits and file capabilities
// have no effect in a sandbox, so it drops them.
func normalizeHeader(h *tar.Header, epoch time.Time) *tar.Header {
	n := &tar.Header{
		Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Size: h.Size,
		Mode: h.Mode & 0o1777, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime.Truncate(time.Second), Format: tar.FormatPAX,
	}
	if n.ModTime.After(epoch) || n.ModTime.IsZero() {
		n.ModTime = epoch
	}
	switch h.Typeflag {
	case tar.TypeDir:
		n.Name += "/"
	case tar.TypeSymlink:
		n.Mode = 0o777
	}
	return n
}

// parseInstalled returns the installed packages with their versions from dpkg's status file.
func parseInstalled(status []byte) (map[string]string, error) {
	packages := map[string]string{}
	for stanza := range strings.SplitSeq(string(status), "\n\n") {
		fields := map[string]string{}
		for line := range strings.SplitSeq(stanza, "\n") {
			if key, value, ok := strings.Cut(line, ":"); ok && key != "" && key[0] != ' ' {
				fields[key] = strings.TrimSpace(value)
			}
		}
		if len(fields) == 0 || fields["Package"] == "" {
			continue
		}
		switch fields["Status"] {
		case "install ok installed":
			packages[fields["Package"]] = fields["Version"]
		case "deinstall ok config-files":
		default:
			return nil, fmt.Errorf("package %s is in the state %q", fields["Package"], fields["Status"])
		}
	}
	return packages, nil
}
