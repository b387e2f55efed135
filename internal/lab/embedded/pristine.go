package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
)

// Pristine is a data directory as initdb makes it. No server runs on it. Start
// copies it for Config.Pristine.
type Pristine struct{ home *home }

// origin tells how a pristine directory was made. Its file exists only while
// the directory is complete: it is written last and removed first.
type origin struct{ Programs, Version, Password string }

// MakePristine runs initdb for the servers to come. The caller must Remove the
// directory. If the process dies before that, a later Start removes it.
func MakePristine(ctx context.Context) (*Pristine, error) {
	return makePristine(ctx, Config{}.root())
}

func makePristine(ctx context.Context, root string) (*Pristine, error) {
	bin, who, err := programs(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, who: who, root: root, password: rand.Text()}
	_, err = s.settle(func() error {
		if err := s.initdb(ctx); err != nil {
			return err
		}
		text, err := json.Marshal(origin{Programs: bin.dir, Version: bin.version, Password: s.password})
		if err == nil {
			err = os.WriteFile(s.home.origin(), text, 0o600)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Pristine{home: s.home}, nil
}

// Path names the directory to other processes of the same user, in
// Config.Pristine.
func (p *Pristine) Path() string { return p.home.path }

// Remove removes the directory. A Start that is copying it runs initdb instead.
func (p *Pristine) Remove() error { return p.home.remove() }

// copyPristine copies a pristine directory into the data directory, and reports
// whether the copy is complete and fits the server's programs. If not, a part
// of the files may be there.
func (s *Server) copyPristine(ctx context.Context, path string) (o origin, copied bool) {
	if path == "" || !ownedByUs(path) {
		return o, false
	}
	from := &home{path: path}
	text, err := os.ReadFile(from.origin())
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil || o.Programs != s.bin.dir || o.Version != s.bin.version {
		return o, false
	}
	if err := s.duplicate(ctx, from.data(), s.home.data()); err != nil {
		return o, false
	}
	// cp does not notice files that are removed before it lists their directory.
	_, err = os.Stat(from.origin())
	return o, err == nil
}

// startOnCopy starts the server on a copy of a pristine directory, and gives it
// its own password. Copies have the same system identifier, so the password
// alone keeps clients and standbys of another copy out.
func (s *Server) startOnCopy(ctx context.Context, o origin) error {
	own := s.password
	s.password = o.Password
	if err := s.startOnSomePort(ctx, freePort); err != nil {
		return err
	}
	if err := s.changePassword(ctx, own); err != nil {
		return errors.Join(fmt.Errorf("embedded: the server's own password: %w", err), s.process.Load().abort())
	}
	return nil
}

func (s *Server) changePassword(ctx context.Context, password string) error {
	secret, err := verifier(password)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.URL(""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `ALTER ROLE postgres PASSWORD '`+secret+`'`)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	s.password = password
	return nil
}
