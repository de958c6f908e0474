package workspace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Put copies files into the workspace, replaces those of the same name, and makes missing directories. Call it before a run, not
// during one. It refuses a symbolic link in the place of a directory, and replaces one in the place of a file. After an error,
// the files that are already copied stay.
func (w *Workspace) Put(ctx context.Context, files []sandbox.File) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return sandbox.Errorf(sandbox.ErrState, "workspace "+w.name, "", "it is closed")
	}
	root, err := os.OpenRoot(fdPath(w.dir))
	if err != nil {
		return failed(w.name, err)
	}
	defer root.Close()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.put(root, f); err != nil {
			if w.project != 0 && (errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC)) { // XFS limits this process as well
				return w.refusal("would hold more than its cap")
			}
			return failed(w.name, err)
		}
	}
	return w.checkProject(ctx)
}

// checkProject refuses a workspace that Put has filled beyond an enforced cap: files take whole blocks, directories some, and on ext4 the
// kernel does not limit this process. A polled cap is Watch's to observe.
func (w *Workspace) checkProject(ctx context.Context) (err error) {
	if w.project == 0 {
		return nil
	}
	if w.used, err = w.Usage(ctx); err != nil {
		return err
	}
	if most := w.bound(); w.used.Bytes > most.bytes || w.used.Inodes > most.inodes {
		return w.refusal(w.used.over(w.meta.Cap, w.meta.Inodes))
	}
	return nil
}

func (w *Workspace) put(root *os.Root, f sandbox.File) error {
	name, inside := strings.CutPrefix(f.Path, sandbox.WorkspaceDir+"/")
	if !inside || path.Clean(f.Path) != f.Path || strings.ContainsRune(f.Path, 0) {
		return sandbox.Invalid("file", "path %q must lie in %s and be in its shortest form", f.Path, sandbox.WorkspaceDir)
	}
	if f.Mode&^fs.ModePerm != 0 {
		return sandbox.Invalid("file", "%q: mode %v has more than permission bits", f.Path, f.Mode)
	}
	if err := w.makeParents(root, path.Dir(name)); err != nil {
		return err
	}
	var replaced Usage
	switch info, err := root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.IsDir():
		return sandbox.Invalid("file", "%q is a directory in the workspace %s; remove it there, or give the file another name", f.Path, w.name)
	default: // a file, a link or a special file
		replaced.Inodes = 1
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 1 {
			replaced.Bytes = sandbox.Size(st.Blocks) * 512
		}
	}
	return w.write(root, name, f, replaced)
}

// makeParents makes the parent directories of a file.
func (w *Workspace) makeParents(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if err := w.makeParents(root, path.Dir(dir)); err != nil {
		return err
	}
	info, err := root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := w.room(0, Usage{}); err != nil {
			return err
		}
		w.used.Inodes++
		return root.Mkdir(dir, 0o755)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return sandbox.Invalid("file", "%q is not a directory in the workspace %s; Put follows no link",
			path.Join(sandbox.WorkspaceDir, dir), w.name)
	}
	return nil
}

// room returns an error if one more file of so many bytes, in place of what it replaces, exceeds the cap.
func (w *Workspace) room(bytes sandbox.Size, replaced Usage) error {
	after := w.after(bytes, replaced)
	if what := after.over(w.meta.Cap, w.meta.Inodes); what != "" {
		return w.refusal(strings.Replace(what, "holds", "would hold", 1))
	}
	return nil
}

func (w *Workspace) after(bytes sandbox.Size, replaced Usage) Usage {
	return Usage{
		Bytes:  w.used.Bytes - min(replaced.Bytes, w.used.Bytes) + bytes,
		Inodes: w.used.Inodes - min(replaced.Inodes, w.used.Inodes) + 1,
	}
}

// write makes the file under an unused name and renames it when it is complete. The file that it replaces stays until then, and
// write never opens it.
func (w *Workspace) write(root *os.Root, name string, f sandbox.File, replaced Usage) (err error) {
	if err := w.room(sandbox.Size(len(f.Data)), replaced); err != nil {
		return err
	}
	from := io.NopCloser(bytes.NewReader(f.Data))
	if f.Data == nil && f.Open != nil {
		if from, err = f.Open(); err != nil {
			return err
		}
	}
	defer from.Close()
	unnamed := path.Join(path.Dir(name), ".put-"+rand.Text())
	to, err := root.OpenFile(unnamed, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := w.fill(to, from, replaced)
	if err == nil {
		err = to.Chmod(cmp.Or(f.Mode, 0o644)) // the umask of this process must not apply
	}
	if err = errors.Join(err, to.Close()); err == nil {
		err = root.Rename(unnamed, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("put %q: %w", f.Path, err), root.Remove(unnamed))
	}
	w.used = w.after(n, replaced)
	return nil
}

// fill copies the content of a file, up to the cap.
func (w *Workspace) fill(to io.Writer, from io.Reader, replaced Usage) (sandbox.Size, error) {
	left := w.meta.Cap - min(w.meta.Cap, w.after(0, replaced).Bytes)
	n, err := io.Copy(to, io.LimitReader(from, int64(left)+1))
	if err != nil {
		return 0, err
	}
	return sandbox.Size(n), w.room(sandbox.Size(n), replaced)
}
