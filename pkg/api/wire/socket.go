package wire

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
)

// SocketVariable is the environment variable with another path of the socket, for servers and clients. The path must be absolute.
const SocketVariable = "SANDBOX_RUN_SOCKET"

// DefaultSocket returns the path on which a user's server listens and where clients look for it:
// $XDG_RUNTIME_DIR/sandbox-run/server.sock, for root /run/sandbox-run/server.sock, or the value of SocketVariable. It is empty
// for a user without a runtime directory.
func DefaultSocket() string {
	const name = "sandbox-run/server.sock"
	if path := os.Getenv(SocketVariable); filepath.IsAbs(path) {
		return path
	}
	if runtime.GOOS != "linux" {
		if dir, err := os.UserCacheDir(); err == nil {
			return filepath.Join(dir, filepath.FromSlash(name))
		}
		return ""
	}
	uid := os.Geteuid()
	if uid == 0 { // sudo may leave another user's variable in place
		return "/run/" + name
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	dir := "/run/user/" + strconv.Itoa(uid)
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		return filepath.Join(dir, name)
	}
	return ""
}
