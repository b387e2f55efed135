package embedded

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A server from an archive that is downloaded, from a loopback address, once.
func TestDownload(t *testing.T) {
	who, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	var downloads atomic.Int32
	jar := machineJar(t)
	repository := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ".jar"):
			downloads.Add(1)
			_, _ = w.Write(jar)
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			fmt.Fprintf(w, "%x", sha256.Sum256(jar))
		default:
			http.NotFound(w, r)
		}
	})
	from := sources{archive: archive{cache: filepath.Join(reachableDir(t), "cache"), repository: repository}}
	// What a process that was killed while unpacking has left.
	if err := os.MkdirAll(filepath.Join(from.archive.cache, stagingPrefix+"old", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	found := make([]binaries, 3)
	var wg sync.WaitGroup
	for i := range found {
		wg.Go(func() {
			var err error
			if found[i], err = find(t.Context(), who, from); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if n := downloads.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	s, err := launch(t.Context(), found[0], who, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, s.URL(""), `SHOW server_version`); !strings.HasPrefix(got, s.Version()) {
		t.Errorf("Version is %q, the server says %q", s.Version(), got)
	}
	if !strings.Contains(s.Source(), "download") {
		t.Errorf("Source is %q", s.Source())
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	onlyTheCacheIsLeft(t, from.archive.cache, 3) // lock, archive, binaries
}

func TestDownloadFails(t *testing.T) {
	jar := machineJar(t)
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"not there": {http.NotFound, "no version found matching"},
		"cut short": {func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".jar") {
				_, _ = w.Write(jar[:len(jar)/2])
				return
			}
			http.NotFound(w, r)
		}, "zip: not a valid zip file"},
		"altered": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(jar) // also for the check sum
		}, "checksums do not match"},
	} {
		a := archive{cache: filepath.Join(reachableDir(t), "cache"), repository: serve(t, test.handler)}
		_, err := a.binaries(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		onlyTheCacheIsLeft(t, a.cache, 1) // the lock
	}
}

// Start does not wait for a download when its context has ended; the download
// is finished for the next one.
func TestDownloadCancelled(t *testing.T) {
	jar := machineJar(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	goOn := make(chan struct{})
	repository := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".jar") {
			cancel()
			<-goOn
			_, _ = w.Write(jar)
			return
		}
		http.NotFound(w, r)
	})
	a := archive{cache: filepath.Join(reachableDir(t), "cache"), repository: repository}
	if _, err := a.binaries(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("binaries: %v", err)
	}
	close(goOn)
	lock, err := waitLock(t.Context(), filepath.Join(a.cache, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	onlyTheCacheIsLeft(t, a.cache, 3)
}

func onlyTheCacheIsLeft(t *testing.T, cache string, want int) {
	t.Helper()
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) != want {
		t.Errorf("the cache holds %v (%v), want %d entries", entries, err, want)
	}
	logs, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	if err != nil || len(logs) > 0 {
		t.Errorf("%v are left (%v)", logs, err)
	}
}

// The binaries are for everybody, whatever the umask was.
func TestLetOthersRead(t *testing.T) {
	dir := reachableDir(t)
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	want := map[string]os.FileMode{"bin": 0o755, "bin/postgres": 0o755, "bin/data": 0o644}
	for name, mode := range map[string]os.FileMode{"bin/postgres": 0o700, "bin/data": 0o600} {
		if err := os.WriteFile(filepath.Join(tree, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("postgres", filepath.Join(tree, "bin/postmaster")); err != nil {
		t.Fatal(err)
	}
	if err := letOthersRead(dir, tree); err != nil {
		t.Fatal(err)
	}
	for name, want := range want {
		info, err := os.Stat(filepath.Join(tree, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v (%v)", name, info.Mode().Perm(), want, err)
		}
	}
}

func serve(t *testing.T, handler http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// machineJar is an archive as the library expects it, of this machine's
// server: a zip of a tar.xz. Links lead to the programs, since these may find
// their other files only from where they are.
func machineJar(t *testing.T) []byte {
	t.Helper()
	dirs := candidates(thisMachine().path, thisMachine().packaged, hasServer)
	if len(dirs) == 0 {
		t.Fatal("this test needs PostgreSQL's server programs on the machine")
	}
	var tarred bytes.Buffer
	w := tar.NewWriter(&tarred)
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		header := &tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: filepath.Join(dirs[0], name), Mode: 0o777}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
	}
	large := bytes.Repeat([]byte("share"), 50_000)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: "share/postgres.bki", Mode: 0o600, Size: int64(len(large))}
	if err := w.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(large); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	entry, err := z.Create("postgres.txz")
	if err == nil {
		_, err = entry.Write(xzStored(tarred.Bytes()))
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

// xzStored wraps data as an .xz file without compressing it: the standard
// library has no writer. See "The .xz File Format", version 1.2.1.
func xzStored(data []byte) []byte {
	sum := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
	flags := []byte{0, 0}                               // no check
	blockHeader := []byte{2, 0, 0x21, 1, 0x16, 0, 0, 0} // 12 bytes with its sum; one filter, LZMA2
	blockHeader = append(blockHeader, sum(blockHeader)...)

	block := blockHeader
	control := byte(1) // a stored chunk that resets the dictionary
	for rest := data; len(rest) > 0; {
		chunk := rest[:min(len(rest), 1<<16)]
		rest = rest[len(chunk):]
		block = binary.BigEndian.AppendUint16(append(block, control), uint16(len(chunk)-1))
		block = append(block, chunk...)
		control = 2 // one that does not
	}
	block = append(block, 0)

	index := binary.AppendUvarint([]byte{0, 1}, uint64(len(block)))
	index = pad(binary.AppendUvarint(index, uint64(len(data))))
	index = append(index, sum(index)...)
	footer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), flags...)

	out := append([]byte{0xFD, '7', 'z', 'X', 'Z', 0}, flags...)
	out = append(append(out, sum(flags)...), pad(block)...)
	out = append(append(out, index...), sum(footer)...)
	return append(append(out, footer...), 'Y', 'Z')
}
