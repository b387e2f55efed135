// Package embedded gives the sim, the tests and the chaos a real PostgreSQL:
// one that runs already, if it is named, else one of their own, from the
// binaries on this machine or from downloaded ones, that leaves nothing behind.
package embedded

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
)

// Start returns a server that accepts connections. In this order: the server
// that Config.URL or DATABASE_URL names; one of its own from the binaries on
// this machine (PATH, then /usr/lib/postgresql, newest first); one of its own
// from downloaded binaries. The error says what was tried and what can be done.
// When ctx ends during Start, nothing is left running, save a download that has
// begun: it goes on and fills the cache.
//
// The caller must Stop the server. If the process dies before it does, the
// server ends with it, and a later Start removes the files.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if !cfg.Own {
		if cfg.URL != "" {
			return connect(ctx, cfg.URL, "the server that was named")
		}
		if url := os.Getenv("DATABASE_URL"); url != "" {
			return connect(ctx, url, "the server that DATABASE_URL names")
		}
	}
	bin, who, err := programs(ctx)
	if err != nil {
		return nil, err
	}
	return launch(ctx, bin, who, cfg)
}

// programs returns the programs of the server and the user who runs them. It
// removes what dead processes have left.
func programs(ctx context.Context) (bin binaries, who *account, err error) {
	sweep(os.TempDir())
	sweep(memory)
	if who, err = serverAccount(); err != nil {
		return bin, nil, err
	}
	if bin, err = find(ctx, who, thisMachine()); err != nil {
		return bin, nil, fmt.Errorf("embedded: %w", err)
	}
	return bin, who, nil
}

// launch makes a data directory and starts a server on it.
func launch(ctx context.Context, bin binaries, who *account, cfg Config) (*Server, error) {
	s := &Server{
		version: bin.version, source: bin.source,
		bin: bin, who: who, root: cfg.root(), settings: maps.Clone(settings), disk: cfg.Disk, password: rand.Text(),
	}
	maps.Copy(s.settings, cfg.Settings)
	return s.settle(func() error {
		if o, copied := s.copyPristine(ctx, cfg.Pristine); copied {
			return s.startOnCopy(ctx, o)
		}
		err := empty(s.home.data())
		if err == nil {
			err = s.initdb(ctx)
		}
		if err == nil {
			err = s.startOnSomePort(ctx, freePort)
		}
		return err
	})
}
