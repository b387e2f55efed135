package consumer_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestStart(t *testing.T) {
	var zero consumer.Start
	for _, c := range []struct {
		start consumer.Start
		after int64
		head  bool
	}{{zero, 0, false}, {consumer.AtBeginning(), 0, false}, {consumer.AtHead(), 0, true}, {consumer.After(7), 7, false}} {
		if after, head := c.start.Position(); after != c.after || head != c.head {
			t.Errorf("got %d, %v, want %+v", after, head, c)
		}
	}
}

func TestDelivery(t *testing.T) {
	if d, ok := consumer.Info(context.Background()); ok {
		t.Errorf("outside of Handle: %+v", d)
	}
	if conn, ok := consumer.Conn(context.Background()); ok || conn != nil {
		t.Errorf("outside of Handle: %v", conn)
	}
	want := consumer.Delivery{Consumer: "mailer", Attempt: 2, Late: true}
	conn := new(sql.Conn)
	ctx := delivery.With(context.Background(), want, delivery.LenderOf(conn))
	if got, ok := consumer.Info(ctx); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	if got, ok := consumer.Conn(ctx); !ok || got != conn {
		t.Errorf("got %v, %v", got, ok)
	}
	if got, ok := consumer.Conn(delivery.With(context.Background(), want, nil)); ok || got != nil {
		t.Errorf("without a connection: %v, %v", got, ok)
	}
}
