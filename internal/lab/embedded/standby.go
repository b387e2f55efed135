package embedded

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

// Port is where the server listens on 127.0.0.1, 0 if it is not one of ours.
func (s *Server) Port() int { return s.port }

// Standby starts a server of its own that follows this one by streaming
// replication, from a base backup, and answers queries (hot standby); to this
// one it is known as "walreceiver". This one must run with wal_level replica
// and at least 3 max_wal_senders. The standby has its settings, its password
// and a disk as large. Port 0 stands for one that is free.
//
// The caller must Stop the standby, promoted or not.
func (s *Server) Standby(ctx context.Context, port int) (*Server, error) {
	if err := s.mine("followed"); err != nil {
		return nil, err
	}
	backup, err := s.bin.backup()
	if err != nil {
		return nil, err
	}
	b := &Server{
		version: s.version, source: s.source,
		bin: s.bin, who: s.who, root: s.root, settings: maps.Clone(s.settings), disk: s.disk, password: s.password, port: port,
	}
	return b.settle(func() error {
		if err := b.copyOf(ctx, s, backup); err != nil {
			return err
		}
		if port == 0 {
			return b.startOnSomePort(ctx, freePort)
		}
		return b.start(ctx)
	})
}

// copyOf fills the data directory with a backup of a server that runs. The
// password stays in a file, of which the standby knows.
func (b *Server) copyOf(ctx context.Context, s *Server, backup string) error {
	secret := filepath.Join(b.home.path, "pgpass")
	err := os.WriteFile(secret, fmt.Appendf(nil, "127.0.0.1:%d:*:postgres:%s\n", s.port, s.password), 0o600)
	if err == nil {
		err = b.who.give(secret)
	}
	if err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres sslmode=disable passfile='%s'", s.port, secret)
	out, err := run(ctx, b.who, b.home.path, backup,
		"--pgdata", b.home.data(), "--dbname", from, "--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--no-password")
	if err != nil {
		return fmt.Errorf("embedded: %s: %w%s", backup, err, indent(out))
	}
	return nil
}

// backup is the program that makes base backups. PATH may lead to links to the
// others; downloaded binaries lack it.
func (b binaries) backup() (program string, err error) {
	server, err := filepath.EvalSymlinks(b.program("postgres"))
	if err == nil {
		program = filepath.Join(filepath.Dir(server), "pg_basebackup")
		_, err = os.Stat(program)
	}
	if err != nil {
		return "", fmt.Errorf("embedded: a standby needs pg_basebackup: %w", &testdeps.Error{
			Program: "pg_basebackup", Remedy: "install PostgreSQL (apt-get install postgresql): the programs that are downloaded for tests lack it",
		})
	}
	return program, nil
}
