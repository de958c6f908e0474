package command

import (
	"archive/tar"
	"bufio"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// runPack writes a directory as an archive whose bytes depend on nothing but names, contents and permissions.
func runPack(flags *flag.FlagSet, args []string, s Streams) int {
	dir, out := flags.String("dir", "", ""), flags.String("out", "", "")
	if flags.Parse(args) != nil {
		return statusUsage
	}
	if *dir == "" || *out == "" || flags.NArg() > 0 {
		flags.Usage()
		return statusUsage
	}
	f, err := os.Create(*out)
	if err != nil {
		return internal(s, err)
	}
	buffered := bufio.NewWriterSize(f, 1<<20)
	err = pack(*dir, buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if failed := f.Close(); err == nil {
		err = failed
	}
	if err != nil {
		return internal(s, err)
	}
	return statusOK
}

// packed is the time of all files in an archive.
var packed = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// pack archives the directories, regular files and links below a directory, in lexical order. It leaves out everything else.
func pack(dir string, to io.Writer) error {
	w := tar.NewWriter(to)
	if err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o755, ModTime: packed, Format: tar.FormatPAX}
		switch entry.Type() {
		case fs.ModeDir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = os.Readlink(name); err != nil {
				return err
			}
		case 0:
			return packFile(w, h, name)
		default:
			return nil
		}
		return w.WriteHeader(h)
	}); err != nil {
		return err
	}
	return w.Close()
}

func packFile(w *tar.Writer, h *tar.Header, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if st.Mode()&0o111 == 0 {
		h.Mode = 0o644
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
