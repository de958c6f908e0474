package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// defaultCertDirs returns the directories of Docker and Podman for the certificates of private registries: HOST[:PORT]/*.crt are
// authorities, NAME.cert with NAME.key is a client certificate.
func defaultCertDirs() []string {
	dirs := []string{"/etc/containers/certs.d", "/etc/docker/certs.d"}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append([]string{filepath.Join(home, ".config", "containers", "certs.d")}, dirs...)
	}
	return dirs
}

// loadTrust returns a TLS configuration with the registry's certificates, or nil if the registry has none.
func loadTrust(registry string, dirs []string) (*tls.Config, error) {
	if strings.ContainsAny(registry, `/\`) || strings.Contains(registry, "..") {
		return nil, nil // not the name of a registry, and a path out of dirs
	}
	var config *tls.Config
	for _, dir := range dirs {
		dir = filepath.Join(dir, registry)
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("certificates of %s: %w", registry, err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			base, isPair := strings.CutSuffix(path, ".cert")
			if !isPair && !strings.HasSuffix(path, ".crt") {
				continue
			}
			if config == nil {
				config = &tls.Config{MinVersion: tls.VersionTLS12}
			}
			if isPair {
				certificate, err := tls.LoadX509KeyPair(path, base+".key")
				if err != nil {
					return nil, fmt.Errorf("certificate %s with its key: %w", path, err)
				}
				config.Certificates = append(config.Certificates, certificate)
				continue
			}
			if err := addAuthority(config, path); err != nil {
				return nil, err
			}
		}
	}
	return config, nil
}

func addAuthority(config *tls.Config, path string) error {
	data, err := readSmall(path)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if config.RootCAs == nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		config.RootCAs = pool
	}
	if !config.RootCAs.AppendCertsFromPEM(data) {
		return fmt.Errorf("certificate authority %s: no certificate in it; it has to be PEM", path)
	}
	return nil
}
