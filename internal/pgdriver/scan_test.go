package pgdriver_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

type scanned struct {
	text    string
	at      time.Time
	then    *time.Time
	took    time.Duration
	raw     json.RawMessage
	numbers []int
}

func TestColumns(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	scan := pgdriver.Columns(func(s *scanned) []any {
		return []any{pgdriver.OrZero(&s.text), pgdriver.UTC(&s.at), pgdriver.UTCOrNil(&s.then), pgdriver.Duration(&s.took), pgdriver.RawJSON(&s.raw), pgdriver.JSON(&s.numbers)}
	})
	all, err := pgdriver.QueryAll(t.Context(), d.DB, scan, `
SELECT 'a', timestamptz '2000-01-01 03:00+03', timestamptz '2000-01-01 03:00+03', 7::bigint, '{"a":1}'::jsonb, '[1,2]'::text
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL`)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	want := []scanned{{"a", at, &at, 7 * time.Microsecond, json.RawMessage(`{"a": 1}`), []int{1, 2}}, {}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("%+v\nwant %+v", all, want)
	}
	numbers, err := pgdriver.QueryAll(t.Context(), d.DB, pgdriver.Value[int64], `SELECT generate_series(1, 2)`)
	if err != nil || !reflect.DeepEqual(numbers, []int64{1, 2}) {
		t.Errorf("%v, %v", numbers, err)
	}
	for _, query := range []string{`SELECT 'x', now(), now(), 1::bigint, '{}', '{}'`, `SELECT 'x', now(), now(), 1::bigint, '{}', '{'`, `SELECT 'x', 'no time', now(), 1::bigint, '{}', '[]'`} {
		if _, err := pgdriver.QueryAll(t.Context(), d.DB, scan, query); err == nil {
			t.Errorf("%s is scanned", query)
		}
	}
}
