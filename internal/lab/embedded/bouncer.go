package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

// Bouncer is a PgBouncer in front of a server: in transaction pooling mode, so
// that each transaction may get another session of the server.
type Bouncer struct {
	program  string
	who      *account
	server   *pgx.ConnConfig
	password string

	home    *home
	port    int
	process *process
}

const bouncerRemedy = "install it (apt-get install pgbouncer) or put it in PATH; its own service need not run"

// StartBouncer starts a PgBouncer in front of the server that the connection
// string names. The settings are PgBouncer's own, as in its ini file, and win
// over those chosen here. The caller must Stop it; it ends with this process.
// Where there is no PgBouncer, the error is a *testdeps.Error.
func StartBouncer(ctx context.Context, server string, settings map[string]string) (*Bouncer, error) {
	b, err := newBouncer(ctx, server)
	if err != nil {
		return nil, err
	}
	if err := b.startOnSomePort(ctx, freePort, settings); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	return b, nil
}

func newBouncer(ctx context.Context, server string) (b *Bouncer, err error) {
	b = &Bouncer{}
	if b.program, err = testdeps.Find(ctx, "PgBouncer", bouncerRemedy, "pgbouncer", "/usr/sbin/pgbouncer"); err != nil { // not in everybody's PATH
		return nil, err
	}
	if b.who, err = serverAccount(); err != nil { // PgBouncer refuses to run as root too
		return nil, err
	}
	if b.server, err = pgx.ParseConfig(server); err != nil {
		return nil, errors.New("embedded: PgBouncer: this is no connection string (it is not shown, it may hold a password)")
	}
	if b.password = b.server.Password; b.password == "" {
		b.password = rand.Text() // the server asks for none, but not everyone shall enter here
	}
	b.home, err = newHome(os.TempDir())
	return b, err
}

// URL is the connection string for a database of the server, through the
// proxy. It holds a password: keep it out of logs.
func (b *Bouncer) URL(dbname string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(b.server.User, b.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)), Path: "/" + dbname, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Stop ends the proxy at once, and with it all connections through it.
func (b *Bouncer) Stop() error {
	var err error
	if b.process != nil {
		err = b.process.kill()
	}
	return errors.Join(err, b.home.remove())
}

// startOnSomePort tries others while the port it found free is taken before
// PgBouncer gets it.
func (b *Bouncer) startOnSomePort(ctx context.Context, choose func() (int, error), settings map[string]string) (err error) {
	for {
		if b.port, err = choose(); err != nil {
			return err
		}
		if err = b.configure(settings); err != nil {
			return fmt.Errorf("embedded: PgBouncer: %w", err)
		}
		if b.process, err = spawn(b.who, b.home.path, b.home.log(), syscall.SIGKILL, b.program, b.file("ini")); err != nil {
			return fmt.Errorf("embedded: PgBouncer: %w", err)
		}
		if err = b.ready(ctx); err == nil {
			return nil
		}
		log, _ := os.ReadFile(b.home.log())
		if ctx.Err() != nil || !strings.Contains(string(log), "Address already in use") {
			return fmt.Errorf("embedded: PgBouncer: %w%s", err, indent(string(log)))
		}
		if err := os.Remove(b.home.log()); err != nil {
			return err
		}
	}
}

func (b *Bouncer) file(name string) string {
	return filepath.Join(b.home.path, "pgbouncer."+name)
}

// configure writes the two files that PgBouncer reads.
func (b *Bouncer) configure(settings map[string]string) error {
	all := map[string]string{
		"listen_addr":               "127.0.0.1",
		"listen_port":               strconv.Itoa(b.port),
		"unix_socket_dir":           "",
		"auth_type":                 "scram-sha-256",
		"auth_file":                 b.file("users"),
		"pool_mode":                 "transaction",
		"max_client_conn":           "1000",
		"default_pool_size":         "20",
		"ignore_startup_parameters": "extra_float_digits",
	}
	maps.Copy(all, settings)
	var ini strings.Builder
	fmt.Fprintf(&ini, "[databases]\n* = host=%s port=%d\n[pgbouncer]\n", b.server.Host, b.server.Port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&ini, "%s = %s\n", name, all[name])
	}
	double := strings.NewReplacer(`"`, `""`)
	users := fmt.Sprintf("\"%s\" \"%s\"\n", double.Replace(b.server.User), double.Replace(b.password))
	for name, text := range map[string]string{"ini": ini.String(), "users": users} {
		err := os.WriteFile(b.file(name), []byte(text), 0o600)
		if err == nil {
			err = b.who.give(b.file(name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ready waits until one can log in through the proxy. A program that has its port
// instead may accept connections and never answer.
func (b *Bouncer) ready(ctx context.Context) error {
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-b.process.Done():
			cancel()
		case <-trying.Done():
		}
	}()
	for {
		conn, err := pgx.Connect(trying, b.URL(b.server.Database))
		switch {
		case err == nil:
			return conn.Close(ctx)
		case ctx.Err() != nil:
			return fmt.Errorf("%w, while one cannot log in: %w", ctx.Err(), err)
		case !backoff.Sleep(trying, 5*time.Millisecond):
			return errors.New("it ended while it was starting")
		}
	}
}
