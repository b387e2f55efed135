// Package embedded gives the sim, the tests and the chaos a real PostgreSQL: a
// server that was named, or one of its own that it starts from the binaries on
// this machine or from downloaded ones, and leaves no trace of.
package embedded

import (
	"context"
	"os"
)

// Config says which server is wanted. The zero value is a good one.
type Config struct {
	// URL is the connection string of a server that runs already: none is
	// started then. Empty: the environment's DATABASE_URL.
	URL string

	// Own asks for a server that the caller may kill: URL and DATABASE_URL
	// are not looked at.
	Own bool

	// Settings are added to the server's configuration parameters and win
	// over the ones chosen here: {"max_connections": "1000"}. A server that
	// runs already keeps its own.
	Settings map[string]string
}

// Start returns a server that accepts connections. In this order: the server
// that Config.URL or DATABASE_URL names; one of its own from the binaries on
// this machine (PATH, then /usr/lib/postgresql, newest first); one of its own
// from downloaded binaries. The caller must Stop it. Should the process die
// before that, the server dies with it and a later Start removes the files.
// When ctx ends during Start, nothing is left running.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if !cfg.Own {
		if cfg.URL != "" {
			return connect(ctx, cfg.URL, "the server that was named")
		}
		if url := os.Getenv("DATABASE_URL"); url != "" {
			return connect(ctx, url, "the server that DATABASE_URL names")
		}
	}
	sweep(os.TempDir())
	who, err := serverAccount()
	if err != nil {
		return nil, err
	}
	bin, err := find(ctx, who)
	if err != nil {
		return nil, err
	}
	return launch(ctx, bin, who, cfg.Settings)
}

