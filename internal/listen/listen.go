package listen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
)

// Health has the callbacks for the state of a listening connection.
type Health struct {
	Connected func()      // called after the channels' functions; may be nil
	Lost      func(error) // called for each failed try; may be nil
	Doubted   func() bool // reports whether the connection must prove that it is alive; may be nil
	Answered  func()      // called for each notification, and each answer while doubted; may be nil
}

func (h Health) connected() {
	if h.Connected != nil {
		h.Connected()
	}
}

func (h Health) doubted() bool { return h.Doubted != nil && h.Doubted() }

func (h Health) answered() {
	if h.Answered != nil {
		h.Answered()
	}
}

const (
	doubtPause = time.Second     // between two calls of Doubted
	pingLimit  = 5 * time.Second // for the answer of a doubted connection
)

// Check returns an error if a connection string is invalid or names a missing file.
func Check(connString string) error {
	_, err := parse(connString)
	return err
}

func parse(connString string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		// pgx's error may contain a password.
		return nil, errors.New(`this is no connection string: it takes "postgres://user:password@host:5432/database" or "host=... dbname=...", with percent-encoded special characters in the first form, and the files that it names must be there`)
	}
	return config, nil
}

// Run calls a channel's function with the payload of every notification. After every connect,
// Run calls each function with an empty payload, since notifications may have been lost. The
// functions must not block. They should coalesce bursts.
//
// Run owns one direct connection to connString. It reconnects with backoff until ctx ends, also
// if a doubted connection does not answer.
func Run(ctx context.Context, connString string, channels map[string]func(payload string), health Health) error {
	config, err := parse(connString)
	if err != nil {
		return err
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	for failures := 1; ctx.Err() == nil; failures++ {
		err := listen(ctx, config, channels, health, func() { failures = 0 })
		if ctx.Err() != nil {
			break
		}
		if health.Lost != nil {
			health.Lost(err)
		}
		backoff.Sleep(ctx, backoff.Session(failures))
	}
	return nil
}

func listen(ctx context.Context, config *pgx.ConnConfig, channels map[string]func(payload string), health Health, connected func()) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	for _, channel := range slices.Sorted(maps.Keys(channels)) {
		if _, err := conn.Exec(ctx, "LISTEN "+ident.Quote(channel)); err != nil {
			return err
		}
	}
	for _, wake := range channels {
		wake("")
	}
	connected()
	for health.connected(); ; {
		n, err := hear(ctx, conn, health)
		if err != nil {
			return err
		}
		if wake := channels[n.Channel]; wake != nil {
			wake(n.Payload)
		}
		health.answered()
	}
}

// hear waits for a notification. A quiet connection cannot be told from a dead one. While
// Health doubts the connection, hear pings it.
func hear(ctx context.Context, conn *pgx.Conn, health Health) (*pgconn.Notification, error) {
	for {
		pause, cancel := context.WithTimeout(ctx, doubtPause)
		n, err := conn.WaitForNotification(pause)
		cancel()
		switch {
		case n != nil:
			return n, nil
		case ctx.Err() != nil || !pgconn.Timeout(err) || conn.IsClosed():
			return nil, err
		case !health.doubted():
			continue
		}
		if err := ping(ctx, conn); err != nil {
			return nil, err
		}
		health.answered()
	}
}

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	if err := conn.Ping(ctx); err != nil {
		return fmt.Errorf("the listening connection does not answer: it died in silence, or its server process stands still: %w", err)
	}
	return nil
}
