package pgdriver_test

import (
	"database/sql"
	"encoding/json"
	"maps"
	"net/url"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// RoundLimit lowers a limit by less than a fifth, to few values.
func TestRoundLimit(t *testing.T) {
	few := map[int]bool{}
	for n := range 10_001 {
		r := pgdriver.RoundLimit(n)
		if r > n || n < 32 && r != n || 5*r < 4*n {
			t.Errorf("%d becomes %d", n, r)
		}
		few[r] = true
	}
	if len(few) > 80 {
		t.Errorf("%d limits are left", len(few))
	}
}

func TestShiftParameters(t *testing.T) {
	for sql, want := range map[string]string{
		"":                            "",
		"size <= $1":                  "size <= $8",
		"$1 = $2 OR $10 = $1":         "$8 = $9 OR $17 = $8",
		"$99999999999999999999 < 1":   "$99999999999999999999 < 1",
		"price = '$' || $1::text":     "price = '$' || $8::text",
		"no parameter, but a $ alone": "no parameter, but a $ alone",
	} {
		if got := pgdriver.ShiftParameters(sql, 7); got != want {
			t.Errorf("%s becomes %s, want %s", sql, got, want)
		}
	}
}

// Time reads every value of a column with every driver and in every zone, within the range of
// JSON.
func TestTimeReadsEveryValue(t *testing.T) {
	const century = int64(36500 * 24 * time.Hour / time.Microsecond)
	now := time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)
	d := pgtest.Empty(t)
	drivers := maps.Clone(pgtest.ThroughBouncer)
	maps.Copy(drivers, pgtest.BrokenByBouncer)
	for name, open := range drivers {
		for _, zone := range []string{"UTC", "Pacific/Kiritimati", "America/New_York"} {
			u, err := url.Parse(d.URL)
			if err != nil {
				t.Fatal(err)
			}
			query := u.Query()
			query.Set("timezone", zone)
			u.RawQuery = query.Encode()
			db := open(t, &pgtest.Database{URL: u.String()})
			for text, want := range map[string]struct {
				at    time.Time
				never bool
				age   int64 // to two days; -1: not compared
			}{
				"-infinity":                       {store.EarliestTime, false, century},
				"4713-01-01 00:00:00+00 BC":       {store.EarliestTime, false, century},
				"0001-01-01 00:00:00+00":          {store.EarliestTime, false, century},
				"0001-01-01 00:00:00.000001+00":   {store.EarliestTime, false, century},
				"2024-05-06 07:08:09.123456+00":   {now, false, -1},
				"9999-12-31 23:59:59.999999+00":   {store.LatestTime, false, 0},
				"20000-01-01 00:00:00+00":         {store.LatestTime, false, 0},
				"294276-12-31 23:59:59.999999+00": {store.LatestTime, false, 0},
				"infinity":                        {store.LatestTime, true, 0},
			} {
				var at time.Time
				var finite sql.NullTime
				var micros, age int64
				err := db.QueryRowContext(t.Context(), `SELECT `+pgdriver.Time(`at`)+`, `+pgdriver.TimeOrNever(`at`)+`, `+pgdriver.Microseconds(`at`)+`, `+pgdriver.Age(`at`)+` FROM (SELECT $1::timestamptz AS at) AS x`, text).
					Scan(&at, &finite, &micros, &age)
				if err != nil {
					t.Errorf("%s, %s: %s: %v", name, zone, text, err)
					continue
				}
				if !at.Equal(want.at) || finite.Valid == want.never || finite.Valid && !finite.Time.Equal(want.at) || micros != want.at.UnixMicro() || age < 0 || want.age >= 0 && max(age-want.age, want.age-age) > century/18250 {
					t.Errorf("%s, %s: %s is read as %v, %v, %d and %d µs ago", name, zone, text, at, finite, micros, age)
				}
				if _, err := json.Marshal(at.UTC()); err != nil {
					t.Errorf("%s, %s: %s: %v", name, zone, text, err)
				}
			}
			var at, finite sql.NullTime
			var micros, age sql.NullInt64
			if err := db.QueryRowContext(t.Context(), `SELECT `+pgdriver.Time(`at`)+`, `+pgdriver.TimeOrNever(`at`)+`, `+pgdriver.Microseconds(`at`)+`, `+pgdriver.Age(`at`)+` FROM (SELECT NULL::timestamptz AS at) AS x`).
				Scan(&at, &finite, &micros, &age); err != nil || at.Valid || finite.Valid || micros.Valid || age.Valid {
				t.Errorf("%s, %s: NULL is read as %v, %v, %v, %v: %v", name, zone, at, finite, micros, age, err)
			}
		}
	}
}
