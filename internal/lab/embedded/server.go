package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// settings suit a server whose data nobody will miss: no sync to disk, a
// little memory, many connections. synchronous_commit stays on, so that an
// acknowledged commit survives the death of the server.
var settings = map[string]string{
	"listen_addresses":           "127.0.0.1",
	"unix_socket_directories":    "", // not every user may write to the default one
	"fsync":                      "off",
	"full_page_writes":           "off",
	"wal_level":                  "minimal",
	"max_wal_senders":            "0",
	"shared_buffers":             "64MB",
	"max_connections":            "300",
	"max_prepared_transactions":  "64",
	"jit":                        "off",
	"dynamic_shared_memory_type": "mmap", // in the data directory: a killed server leaves none elsewhere
}

// Server is a PostgreSQL server. All methods may be called from several
// goroutines.
type Server struct {
	version string
	source  string

	external string // the connection string of a server that was named; else the rest:
	bin      binaries
	who      *account
	home     *home
	root     string // of its home
	settings map[string]string
	disk     int64
	port     int
	password string

	changing sync.Mutex // held by Stop, Kill and Restart
	stopped  bool
	process  atomic.Pointer[process]
}

// Version is the server's version, "15.18".
func (s *Server) Version() string { return s.version }

// Source says in words where the server or its binaries came from.
func (s *Server) Source() string { return s.source }

// PID is the process id of the postmaster last started, 0 if the server is not
// one of ours.
func (s *Server) PID() int {
	if p := s.process.Load(); p != nil {
		return p.Pid()
	}
	return 0
}

// URL is the connection string for a database of the server; empty means the
// one to begin with. It holds a password: keep it out of logs.
func (s *Server) URL(dbname string) string {
	if s.external != "" {
		return withDatabase(s.external, dbname)
	}
	if dbname == "" {
		dbname = "postgres"
	}
	base := fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/?sslmode=disable", s.password, s.port)
	return withDatabase(base, dbname)
}

// Log is the end of what the server wrote to its log, "" if it is not one of
// ours or was stopped.
func (s *Server) Log() string {
	if s.home == nil {
		return ""
	}
	const most = 8 << 10
	text, err := os.ReadFile(s.home.log())
	if err != nil {
		return ""
	}
	return string(text[max(0, len(text)-most):])
}

// LogFile is the path of the server's log while the server is there, "" if it is
// not one of ours.
func (s *Server) LogFile() string {
	if s.home == nil {
		return ""
	}
	return s.home.log()
}

// settle gives the server a home with an empty data directory, where move
// starts it. Nothing is left if that fails.
func (s *Server) settle(move func() error) (settled *Server, err error) {
	if s.home, err = newHome(s.root); err != nil {
		return nil, err
	}
	err = os.Mkdir(s.home.data(), 0o700)
	if err == nil && s.disk > 0 {
		err = mountDisk(s.home.data(), s.disk)
	}
	if err == nil {
		err = s.who.give(s.home.data())
	}
	if err != nil {
		err = fmt.Errorf("embedded: %w", err)
	} else {
		err = move()
	}
	if err != nil {
		return nil, errors.Join(err, s.home.remove())
	}
	return s, nil
}

func (s *Server) initdb(ctx context.Context) error {
	password := filepath.Join(s.home.path, "password")
	secret, err := verifier(s.password)
	if strings.HasPrefix(s.bin.version, "13.") {
		secret = s.password // there initdb reads 99 characters at most
	}
	if err == nil {
		err = os.WriteFile(password, []byte(secret), 0o600)
	}
	if err == nil {
		err = s.who.give(password)
	}
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	out, err := run(ctx, s.who, s.home.data(), s.bin.program("initdb"), "-D", s.home.data(), "-U", "postgres",
		"--pwfile="+password, "--auth=scram-sha-256", "--no-sync", "--locale=C", "--encoding=UTF8")
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w (the server runs as another user than root, who must be able to enter %s: set TMPDIR)", err, s.home.path)
	}
	if err != nil {
		return fmt.Errorf("embedded: initdb from %s: %w%s", s.bin.dir, err, indent(out))
	}
	return os.Remove(password)
}

// startOnSomePort tries other ports while the ones it found free are taken
// before the server gets them.
func (s *Server) startOnSomePort(ctx context.Context, choose func() (int, error)) error {
	for {
		port, err := choose()
		if err != nil {
			return err
		}
		s.port = port
		err = s.start(ctx)
		if err == nil || ctx.Err() != nil || !strings.Contains(s.Log(), "could not create any TCP/IP sockets") {
			return err
		}
		if err := os.Remove(s.home.log()); err != nil {
			return err
		}
	}
}

// freePort searches below the range from which the kernel takes the ports of
// outgoing connections. In that range a client that keeps dialling a server
// which is down meets itself in the end, and the server cannot come back.
func freePort() (port int, err error) {
	const first, end, tries = 15000, 32000, 100
	for range tries {
		port = first + mathrand.IntN(end-first)
		var l net.Listener
		if l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("embedded: of %d ports tried between %d and %d none is free: %w", tries, first, end, err)
}

func (s *Server) start(ctx context.Context) error { return s.startOn(ctx, s.port) }

func (s *Server) startOn(ctx context.Context, port int) error {
	args := []string{"-D", s.home.data(), "-p", strconv.Itoa(port)}
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		args = append(args, "-c", name+"="+s.settings[name])
	}
	// At SIGQUIT the postmaster ends its children and gives its shared memory
	// back; killed, it could do neither.
	p, err := spawn(s.who, s.home.data(), s.home.log(), syscall.SIGQUIT, s.bin.program("postgres"), args...)
	if err != nil {
		return fmt.Errorf("embedded: postgres from %s: %w", s.bin.dir, err)
	}
	s.process.Store(p)
	if err := p.ready(ctx); err != nil {
		return errors.Join(fmt.Errorf("embedded: postgres from %s: %w%s", s.bin.dir, err, indent(s.Log())), p.abort())
	}
	return nil
}

// Stop shuts the server down (fast: sessions are ended, work is rolled back),
// waits until it is gone and removes its files. When ctx ends first, the server
// is ended all the same, without grace, and the error says so. Stop may be
// called again, which does nothing; nor does it do anything to a server that
// was there before.
func (s *Server) Stop(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if s.external != "" || s.stopped {
		return nil
	}
	s.stopped = true
	if !s.process.Load().Running() {
		// A killed server leaves a System V shared memory segment to the system,
		// of which there are not many. Its successor takes it away, where no program
		// expects it.
		if port, err := freePort(); err == nil {
			_ = s.startOn(ctx, port)
		}
	}
	return errors.Join(s.process.Load().shutdown(ctx), s.home.remove())
}

// Kill ends the server and all its processes with SIGKILL, as a crash would,
// and waits until they are gone. The data stays for Restart.
func (s *Server) Kill() error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.mine("killed"); err != nil {
		return err
	}
	return s.process.Load().kill()
}

// Restart starts the server again, on the same data and port, after Kill or a
// crash. A server that runs is shut down first.
func (s *Server) Restart(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.mine("restarted"); err != nil {
		return err
	}
	if err := s.process.Load().shutdown(ctx); err != nil {
		return err
	}
	return s.start(ctx)
}

func (s *Server) mine(done string) error {
	if s.external != "" {
		return fmt.Errorf("embedded: %s was not started here and is not %s", s.source, done)
	}
	if s.stopped {
		return fmt.Errorf("embedded: the server was stopped and cannot be %s", done)
	}
	return nil
}

// Config says which server is wanted. The zero value is a good one.
type Config struct {
	// URL is the connection string of a server that runs already: none is
	// started then. Empty: the one in the environment's DATABASE_URL, if any.
	URL string

	// Own asks for a server that the caller may kill: neither URL nor
	// DATABASE_URL is used.
	Own bool

	// Settings are configuration parameters of PostgreSQL for a server that is
	// started, and win over those chosen here: {"max_connections": "1000"}.
	Settings map[string]string

	// Pristine is the Path of a Pristine. A server that is started gets a copy of
	// it. Start runs initdb if the field is empty, or if the directory is gone or
	// was made by other programs.
	Pristine string

	// OnDisk keeps the data of a server that is started on the file system of
	// temporary files, for measurements. By default the data is in memory where
	// this machine has room for it there.
	OnDisk bool

	// Disk, if not 0, gives a server that is started a disk of that many bytes
	// for its data, which Fill can fill: a file system in memory. It needs
	// Linux and root.
	Disk int64
}
