package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// `docker login` and `podman login` write the credentials of a user into files. The registry library's reader (authn.DefaultKeychain, as
// of v0.22) reads Podman's file only if Docker has none, prefers ~/.docker to $DOCKER_CONFIG, finds entries for the registry and the
// repository but not for the parts between, does not read DOCKER_AUTH_CONFIG, and waits for a credential helper without a limit. This
// reader uses the library's entries (authn.AuthConfig), reads every file in turn, and ends a helper after helperWait.
const (
	maxCredentials = 1 << 20 // bytes of a file, and of a helper's output

	// hubKey is the name of Docker Hub in Docker's files.
	hubKey = "https://index.docker.io/v1/"
)

// helperWait bounds a credential helper, which may prompt the user. Tests shorten it.
var helperWait = 30 * time.Second

// helperName matches the NAME of docker-credential-NAME. The name comes from a file and becomes the name of a program.
var helperName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// authFile is the part of config.json and auth.json with credentials.
type authFile struct {
	Auths       map[string]json.RawMessage `json:"auths"` // decoded on lookup, so that a damaged entry does not affect others
	CredHelpers map[string]string          `json:"credHelpers"`
	CredsStore  string                     `json:"credsStore"`
}

// credentials returns the user's credentials for a repository: the most specific entry of the first source that has one. Without an
// entry it returns authn.Anonymous. The second result names the source.
func credentials(ctx context.Context, registry, repository string) (authn.Authenticator, string, error) {
	sources, err := credentialSources()
	if err != nil {
		return nil, "", err
	}
	for _, s := range sources {
		auth, err := s.file.lookup(ctx, registry, repository)
		if err != nil {
			return nil, "", fmt.Errorf("credentials for %s in %s: %w", registry, s.name, err)
		}
		if auth != nil {
			return authn.FromConfig(*auth), s.name, nil
		}
	}
	return authn.Anonymous, "", nil
}

type credentialSource struct {
	name string
	file authFile
}

// credentialSources reads DOCKER_AUTH_CONFIG and the files that exist, in the order of their precedence.
func credentialSources() ([]credentialSource, error) {
	var sources []credentialSource
	if text := os.Getenv("DOCKER_AUTH_CONFIG"); text != "" {
		file, err := parseAuthFile([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("variable DOCKER_AUTH_CONFIG: %w; correct or unset it", err)
		}
		sources = append(sources, credentialSource{"DOCKER_AUTH_CONFIG", file})
	}
	for _, path := range credentialPaths() {
		data, err := readSmall(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read credentials: %w", err)
		}
		file, err := parseAuthFile(data)
		if err != nil {
			return nil, fmt.Errorf("read credentials: %s: %w; correct the file or move it away", path, err)
		}
		sources = append(sources, credentialSource{path, file})
	}
	return sources, nil
}

// credentialPaths returns the path of Docker's file, then those of Podman's.
func credentialPaths() []string {
	home, _ := os.UserHomeDir() // empty: only paths from variables count
	var paths []string
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		paths = append(paths, filepath.Join(dir, "config.json"))
	} else if home != "" {
		paths = append(paths, filepath.Join(home, ".docker", "config.json"))
	}
	if path := os.Getenv("REGISTRY_AUTH_FILE"); path != "" {
		return append(paths, path)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		paths = append(paths, filepath.Join(dir, "containers", "auth.json"))
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		paths = append(paths, filepath.Join(dir, "containers", "auth.json"))
	} else if home != "" {
		paths = append(paths, filepath.Join(home, ".config", "containers", "auth.json"))
	}
	return paths
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCredentials+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxCredentials {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxCredentials)
	}
	return data, nil
}

func parseAuthFile(data []byte) (file authFile, err error) {
	if len(bytes.TrimSpace(data)) > 0 {
		err = decodeSecret(data, &file)
	}
	return file, err
}

// decodeSecret decodes JSON with secrets. Its errors never quote the JSON.
func decodeSecret(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("field %q has the wrong type", kind.Field)
	}
	return err // the library's errors about base64 have a byte offset, and no content
}

// lookup returns the file's credentials for a repository, or nil.
func (f authFile) lookup(ctx context.Context, registry, repository string) (*authn.AuthConfig, error) {
	for _, key := range helperKeys(registry) {
		if helper, ok := f.CredHelpers[key]; ok && helper != "" {
			return askHelper(ctx, helper, helperServer(registry))
		}
	}
	if f.CredsStore != "" {
		auth, err := askHelper(ctx, f.CredsStore, helperServer(registry))
		if auth != nil || err != nil {
			return auth, err
		}
		// Entries from before the store was configured are still in the file.
	}
	for _, scope := range scopes(registry, repository) {
		for _, key := range slices.Sorted(maps.Keys(f.Auths)) { // Docker Hub may be there under two names
			if authKey(key) != scope {
				continue
			}
			var auth authn.AuthConfig
			if err := decodeSecret(f.Auths[key], &auth); err != nil {
				return nil, fmt.Errorf("entry %q: %w; log in again", key, err)
			}
			// Older tools pad the password. An entry is empty when a helper has the secret.
			auth.Auth, auth.Password = "", strings.TrimRight(auth.Password, "\x00")
			if auth != (authn.AuthConfig{}) {
				return &auth, nil
			}
		}
	}
	return nil, nil
}

// scopes returns the keys that an entry for a repository may have, most specific first: Podman stores credentials for parts of a
// registry as well.
func scopes(registry, repository string) []string {
	var out []string
	for name := canonicalRegistry(registry) + "/" + repository; name != ""; {
		out = append(out, name)
		cut := strings.LastIndexByte(name, '/')
		if cut < 0 {
			break
		}
		name = name[:cut]
	}
	return out
}

// authKey converts the key of an entry to the form of scopes: without scheme, /v1/ and /v2/, with one name for Docker Hub.
func authKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	key = strings.TrimSuffix(strings.TrimSuffix(key, "/v1"), "/v2")
	host, rest, found := strings.Cut(key, "/")
	if found {
		return canonicalRegistry(host) + "/" + rest
	}
	return canonicalRegistry(host)
}

// canonicalRegistry returns the name of a registry as references have it.
func canonicalRegistry(host string) string {
	host = strings.ToLower(host)
	if isHub(host) {
		return "docker.io"
	}
	return host
}

func isHub(host string) bool {
	switch host {
	case "docker.io", "index.docker.io", "registry-1.docker.io":
		return true
	}
	return false
}

func helperKeys(registry string) []string {
	if isHub(registry) {
		return []string{hubKey, "index.docker.io", "docker.io"}
	}
	return []string{registry}
}

// helperServer returns the server name for a helper, which knows Docker Hub by one name only.
func helperServer(registry string) string {
	if isHub(registry) {
		return hubKey
	}
	return registry
}

// askHelper runs a credential helper by Docker's protocol: the server's name on standard input, JSON on standard output. A helper without
// credentials for the server prints a fixed message and fails; the result is nil then.
func askHelper(ctx context.Context, helper, server string) (*authn.AuthConfig, error) {
	if !helperName.MatchString(helper) {
		return nil, fmt.Errorf("credential helper %q is not the name of a program docker-credential-NAME", helper)
	}
	program := "docker-credential-" + helper
	ctx, cancel := context.WithTimeout(ctx, helperWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.WaitDelay = time.Second // a child of the helper may hold the pipe
	cmd.Stdin = strings.NewReader(server)
	var out, complaint bounded
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("credential helper %s is not on PATH; install it or remove it from the file", program)
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, fmt.Errorf("credential helper %s did not answer within %s; run `%s get` by hand", program, helperWait, program)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && notFound(out.String()+complaint.String()):
		return nil, nil
	case err != nil:
		// Helpers print errors to standard output, and a secret only on success.
		text := out.String()
		if strings.TrimSpace(text) == "" {
			text = complaint.String()
		}
		return nil, fmt.Errorf("credential helper %s: %w: %s", program, err, plain(text))
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out.buf.Bytes(), &answer); err != nil {
		return nil, fmt.Errorf("credential helper %s: answer is not JSON", program)
	}
	switch {
	case answer.Secret == "" && answer.Username == "":
		return nil, nil
	case answer.Username == "<token>":
		return &authn.AuthConfig{Username: answer.Username, IdentityToken: answer.Secret}, nil
	}
	return &authn.AuthConfig{Username: answer.Username, Password: answer.Secret}, nil
}

func notFound(text string) bool {
	return strings.Contains(text, "credentials not found in native keychain") || strings.Contains(text, "no credentials server URL")
}

// bounded keeps the first maxCredentials bytes and discards the rest, so that the writer does not block. The buffer is not embedded,
// because its ReadFrom has no bound.
type bounded struct{ buf bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.buf.Write(p[:min(len(p), maxCredentials-b.buf.Len())])
	return len(p), nil
}

func (b *bounded) String() string { return b.buf.String() }
