package postgres

import (
	"bytes"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A stored payload that equals isWithheld is delivered unchanged.
func TestStoredPayloadEqualToMarker(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if _, err := d.DB.Exec(`INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		VALUES ('A', 'x', 1, gen_random_uuid(), 'E', $1), ('A', 'x', 2, gen_random_uuid(), 'E', NULL)`, isWithheld); err != nil {
		t.Fatal(err)
	}
	events, _, err := NewStore(nil).ReadSized(t.Context(), d.DB, 0, 10, 1_000_000)
	if err != nil || len(events) != 2 || !bytes.Equal(events[0].Payload, isWithheld) || len(events[1].Payload) != 0 {
		t.Errorf("it reads %+v; %v", events, err)
	}
}

// A withheld payload is recognized whatever settings a session has.
func TestWithheldPayloadInAnySession(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	large := bytes.Repeat([]byte("x"), 5_000)
	if _, err := d.DB.Exec(`INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		VALUES ('A', 'x', 1, gen_random_uuid(), 'E', $1)`, large); err != nil {
		t.Fatal(err)
	}
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, left := range []string{`standard_conforming_strings = off`, `bytea_output = escape`} {
		if _, err := conn.ExecContext(t.Context(), `SET `+left); err != nil {
			t.Fatal(err)
		}
		events, _, err := NewStore(nil).ReadSized(t.Context(), conn, 0, 10, 1_000)
		if err != nil || len(events) != 1 || !bytes.Equal(events[0].Payload, large) {
			t.Errorf("with %s it reads %d events, %v", left, len(events), err)
		}
	}
}
