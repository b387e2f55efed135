// Package embedded gives the sim, the tests and the chaos a real PostgreSQL:
// one that runs already, if it is named, else one of their own, from the
// binaries on this machine or from downloaded ones, that leaves nothing behind.
package embedded

import (
	"context"
	"fmt"
	"os"
)

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
