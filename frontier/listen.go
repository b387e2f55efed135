package frontier

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Listen calls wake for every notification on channel, and once after every
// (re)connection, since notifications may have been lost meanwhile. It owns a
// direct connection to connString and reconnects with backoff until ctx ends.
// wake must not block; that it coalesces makes bursts cheap.
//
// LISTEN belongs to a session: through a transaction-pooling proxy nothing
// would arrive, and the frontier's own looks are what remains.
func Listen(ctx context.Context, connString, channel string, wake func(), logger store.Logger) error {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return fmt.Errorf("frontier: the connection string for notifications cannot be parsed: %w", err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	for failures := 1; ctx.Err() == nil; failures++ {
		err := listen(ctx, config, channel, func() {
			failures = 0
			wake()
		})
		if ctx.Err() != nil {
			break
		}
		logger.Error(ctx, "notification listener lost, will reconnect", "channel", channel, "error", err)
		backoff.Sleep(ctx, backoff.Infrastructure(failures))
	}
	return nil
}

func listen(ctx context.Context, config *pgx.ConnConfig, channel string, wake func()) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+ident.Quote(channel)); err != nil {
		return err
	}
	wake()
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		wake()
	}
}
