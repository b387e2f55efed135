package browser

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

// What judges the pages, and the hash of its script.
const (
	axeVersion = "4.14.1"
	axeHash    = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
)

var axeOnce = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return findAxe(ctx)
})

// axeCore is the script of axe-core. It comes from npm, once.
func axeCore(t testing.TB) string {
	t.Helper()
	script, err := axeOnce()
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	return script
}

func findAxe(ctx context.Context) (script string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no folder for axe-core: set HOME or XDG_CACHE_HOME: %w", err)
	}
	kept := filepath.Join(cache, "pgfrontier", "axe-core-"+axeVersion+".js")
	if text, err := os.ReadFile(kept); err == nil && isAxe(text) {
		return string(text), nil
	}
	npm, err := testdeps.Find(ctx, "npm", "install it (apt-get install npm), it fetches axe-core", "npm")
	if err != nil {
		return "", err
	}
	folder, err := os.MkdirTemp("", "axe-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	pack := exec.CommandContext(ctx, npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, "axe-core@"+axeVersion)
	if out, err := pack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm does not bring axe-core: %w\n%s", err, out)
	}
	text, err := unpack(filepath.Join(folder, "axe-core-"+axeVersion+".tgz"), "package/axe.min.js")
	if err == nil && !isAxe(text) {
		err = fmt.Errorf("npm has brought another axe-core %s than the one with SHA-256 %s", axeVersion, axeHash)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(kept), 0o755)
	}
	if err == nil {
		err = os.WriteFile(kept, text, 0o600)
	}
	return string(text), err
}

func isAxe(text []byte) bool {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]) == axeHash
}

// unpack reads one file of an archive.
func unpack(archive, name string) ([]byte, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s has no %s", archive, name)
		}
		if err != nil {
			return nil, err
		}
		if h.Name == name {
			return io.ReadAll(files)
		}
	}
}
