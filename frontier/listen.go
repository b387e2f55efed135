package frontier

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// ListenerHealth is told how a listening connection fares.
type ListenerHealth struct {
	Connected func()      // after the channels' functions were called; may be nil
	Lost      func(error) // for each failed try; may be nil
}

// Listen calls the function of a channel for every notification on it, with
// its payload, and each with none after every (re)connection, since
// notifications may have been lost meanwhile. It owns one direct connection to connString and reconnects with
// backoff until ctx ends. The functions must not block; that they coalesce
// makes bursts cheap.
//
// LISTEN belongs to a session: through a transaction-pooling proxy nothing
// would arrive, and the frontier's own looks are what remains.
func Listen(ctx context.Context, connString string, channels map[string]func(said string), health ListenerHealth, logger store.Logger) error {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return errors.New("frontier: the connection string for notifications cannot be parsed") // why not, might show a password
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	for failures := 1; ctx.Err() == nil; failures++ {
		err := listen(ctx, config, channels, func() {
			if failures = 0; health.Connected != nil {
				health.Connected()
			}
		})
		if ctx.Err() != nil {
			break
		}
		logger.Error(ctx, "notification listener lost, will reconnect", "channels", slices.Sorted(maps.Keys(channels)), "error", err)
		if health.Lost != nil {
			health.Lost(err)
		}
		backoff.Sleep(ctx, backoff.Session(failures))
	}
	return nil
}

func listen(ctx context.Context, config *pgx.ConnConfig, channels map[string]func(said string), healthy func()) error {
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
	for healthy(); ; {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if wake := channels[n.Channel]; wake != nil {
			wake(n.Payload)
		}
	}
}
