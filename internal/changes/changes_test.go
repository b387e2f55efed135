package changes_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestNotify(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d := pgtest.New(t)
	table := ident.Table{Name: "consumer_checkpoints_changes"}
	channel, err := changes.Channel(ctx, d.DB, table)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := pgx.Connect(ctx, d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close(ctx) }()
	if _, err := listener.Exec(ctx, "LISTEN "+ident.Quote(channel)); err != nil {
		t.Fatal(err)
	}
	for want := range int64(3) {
		var count int64
		if err := d.DB.QueryRowContext(ctx, "SELECT "+changes.Count(table)).Scan(&count); err != nil || count != want {
			t.Fatalf("the counter is %d (%v) after %d announcements", count, err, want)
		}
		if err := changes.Notify(ctx, d.DB, table); err != nil {
			t.Fatal(err)
		}
		if _, err := listener.WaitForNotification(ctx); err != nil {
			t.Fatalf("awaited a notification on %s: %v", channel, err)
		}
	}
	if _, err := changes.Channel(ctx, d.DB, ident.Table{Name: "nothing"}); err == nil {
		t.Error("a table that is not there has a channel")
	}
}
