package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// uploads are files that clients send before the runs that use them. A file's name has its owner, id and content digest, so that a run
// never sees other content: a replaced or expired file is gone.
type uploads struct {
	dir    *userdir.Dir
	keep   Keep
	shared bool // there are several owners, each of whom leaves room for others
	now    func() time.Time

	mu     sync.Mutex
	files  map[string]upload // by key
	size   int64             // of all files, including those being sent
	number int64             // number of files, which bounds empty ones
	owners map[string]share  // by owner; files of an earlier server have the owner ""
}

// share is the size and number of an owner's files.
type share struct{ size, number int64 }

// perFile is the number of bytes of Keep.Uploads per file that may be kept.
const perFile = 4 << 10

// mostFiles returns how many files may be kept.
func (u *uploads) mostFiles() int64 { return max(int64(u.keep.Uploads)/perFile, 64) }

type upload struct {
	name    string // of the file: key.digest
	size    int64
	digest  string
	expires time.Time
	owner   string
}

func openUploads(path string, k Keep, shared bool) (*uploads, error) {
	dir, err := userdir.OpenDir(path, userdir.Write)
	if err != nil {
		return nil, err
	}
	u := &uploads{dir: dir, keep: k, shared: shared, now: time.Now, files: map[string]upload{}, owners: map[string]share{}}
	names, err := dir.Names()
	if err != nil {
		u.close()
		return nil, err
	}
	for _, n := range names {
		key, digest, ok := strings.Cut(n, ".")
		f, err := dir.Open(n, userdir.Read)
		if err != nil {
			continue
		}
		st, err := f.Stat()
		_ = f.Close()
		if _, twice := u.files[key]; err != nil || !ok || len(digest) != 2*sha256.Size || twice {
			_ = dir.Remove(n) // incomplete, or being replaced
			continue
		}
		u.files[key] = upload{name: n, size: st.Size(), digest: digest, expires: st.ModTime().Add(k.UploadFor)}
		u.count("", st.Size(), 1)
	}
	u.removeExpired()
	return u, nil
}

func (u *uploads) close() { _ = u.dir.Close() }

// keyOf returns a file name for an owner's id.
func keyOf(owner, id string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + id))
	return hex.EncodeToString(sum[:16])
}

func checkUploadID(id string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if id == "" || len(id) > 128 || strings.Trim(id, letters) != "" || strings.Trim(id, ".") == "" {
		return wire.WrongField(wire.CodeInvalid, "id",
			"%.40q is not an id of 1 to 128 letters, digits, dots, dashes and underscores; write it like data-1.csv", id)
	}
	return nil
}

var errNoUpload = errors.New("it does not exist or has expired; send it by PUT " + wire.PathFiles + "/{id}")

func (u *uploads) get(owner, id string) (upload, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f, ok := u.files[keyOf(owner, id)]
	if !ok || f.expires.Before(u.now()) {
		return f, errNoUpload
	}
	return f, nil
}

func (u *uploads) open(f upload) (*os.File, error) {
	file, err := u.dir.Open(f.name, userdir.Read)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoUpload
	}
	return file, err
}

// finder returns a function that finds an owner's files by id.
func (u *uploads) finder(owner string) wire.Uploads {
	return func(id string) (func() (io.ReadCloser, error), error) {
		f, err := u.get(owner, id)
		if err != nil {
			return nil, fmt.Errorf("%.40q: %w", id, err)
		}
		return func() (io.ReadCloser, error) {
			file, err := u.open(f)
			if err != nil {
				return nil, sandbox.Invalid("files", "the uploaded file %.40q: %w", id, err)
			}
			return file, nil
		}, nil
	}
}

// reserve takes room for bytes and files, or fails with a *Refusal. With several owners, one may have as much as is left for the others.
func (u *uploads) reserve(owner string, size, number int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	left, places, own := int64(u.keep.Uploads)-u.size-size, u.mostFiles()-u.number-number, u.owners[owner]
	switch {
	case left < 0, places < 0:
		return &Refusal{Status: http.StatusServiceUnavailable, Reason: "the server has no room for uploaded files", RetryAfter: time.Minute}
	case u.shared && (own.size+size > left || own.number+number > places):
		return &Refusal{
			Status: http.StatusTooManyRequests, RetryAfter: time.Minute,
			Reason: fmt.Sprintf("you have %d uploaded files with %s; at most %d with %s are possible now; remove some",
				own.number, sandbox.Size(own.size), (own.number+places+number)/2, sandbox.Size((own.size+left+size)/2)),
		}
	}
	u.count(owner, size, number)
	return nil
}

func (u *uploads) release(owner string, size, number int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count(owner, -size, -number)
}

// count changes the totals. mu is held.
func (u *uploads) count(owner string, size, number int64) {
	u.size += size
	u.number += number
	own := u.owners[owner]
	own.size += size
	own.number += number
	if u.owners[owner] = own; own == (share{}) {
		delete(u.owners, owner)
	}
}

// put reads a file to its end and stores it.
func (u *uploads) put(owner, id string, from io.Reader) (f upload, replaced bool, err error) {
	key := keyOf(owner, id)
	name := key + ".in-" + NewID()
	f.owner = owner
	if err := u.reserve(owner, 0, 1); err != nil {
		return f, false, err
	}
	reserved := int64(0)
	defer func() {
		if err != nil {
			u.release(owner, reserved, 1)
			_ = u.dir.Remove(name)
		}
	}()
	out, err := u.dir.Open(name, userdir.Write)
	if err != nil {
		return f, false, err
	}
	defer out.Close()
	sum := sha256.New()
	room := writerFunc(func(b []byte) (int, error) {
		n := int64(len(b))
		if f.size += n; f.size > int64(u.keep.Upload) {
			return 0, uploadTooLarge("file: it is larger than %s, the most that the operator allows", u.keep.Upload)
		}
		if err := u.reserve(owner, n, 0); err != nil {
			return 0, err
		}
		reserved += n
		return len(b), nil
	})
	if _, err := io.Copy(io.MultiWriter(room, sum, out), from); err != nil {
		return f, false, bodyError(err)
	}
	f.digest = hex.EncodeToString(sum.Sum(nil))
	f.name, f.expires = key+"."+f.digest, u.now().Add(u.keep.UploadFor)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.dir.Rename(name, f.name); err != nil {
		return f, false, err
	}
	old, replaced := u.files[key]
	if replaced {
		u.count(old.owner, -old.size, -1)
		if old.name != f.name {
			_ = u.dir.Remove(old.name)
		}
	}
	u.files[key] = f
	return f, replaced, nil
}

// remove deletes a file, and returns whether there was one.
func (u *uploads) remove(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	f, ok := u.files[key]
	if ok {
		delete(u.files, key)
		u.count(f.owner, -f.size, -1)
		_ = u.dir.Remove(f.name)
	}
	return ok
}

// removeExpired removes expired files.
func (u *uploads) removeExpired() {
	u.mu.Lock()
	var expired []string
	for key, f := range u.files {
		if f.expires.Before(u.now()) {
			expired = append(expired, key)
		}
	}
	u.mu.Unlock()
	for _, key := range expired {
		u.remove(key)
	}
}

// upload handles PUT /v1/files/{id}.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkUploadID(id); err != nil {
		return err
	}
	body, done, err := s.uploadBody(w, r)
	if err != nil {
		return err
	}
	f, replaced, err := s.uploads.put(PrincipalFrom(r.Context()).ID, id, body)
	if err != nil {
		return err
	}
	done()
	status := http.StatusCreated
	if replaced {
		status = http.StatusOK
	}
	return answerJSON(w, status, wire.Upload{ID: id, Size: f.size, SHA256: f.digest, Expires: f.expires})
}

func uploadTooLarge(format string, args ...any) error {
	p := wire.NewProblem(wire.CodeTooLarge, format, args...)
	p.Hint = "send less, or several smaller files"
	return p
}

func noUpload(id string, err error) error {
	cause, _, _ := strings.Cut(err.Error(), "; ")
	p := wire.NewProblem(wire.CodeNotFound, "file %.40q: %s", id, cause)
	p.Hint = "PUT " + wire.PathFiles + "/" + id + ", which sends it"
	return p
}

// download handles GET /v1/files/{id}.
func (s *Server) download(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkUploadID(id); err != nil {
		return err
	}
	f, err := s.uploads.get(PrincipalFrom(r.Context()).ID, id)
	if err != nil {
		return noUpload(id, err)
	}
	file, err := s.uploads.open(f)
	if err != nil {
		return noUpload(id, err)
	}
	defer file.Close()
	serveHead(w, id, f.size)
	w.Header().Set("ETag", `"`+f.digest+`"`)
	_, _ = io.Copy(w, file) // fails when the client is gone
	return nil
}

// discard handles DELETE /v1/files/{id}.
func (s *Server) discard(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkUploadID(id); err != nil {
		return err
	}
	if !s.uploads.remove(keyOf(PrincipalFrom(r.Context()).ID, id)) {
		return noUpload(id, errNoUpload)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
