package pgdriver_test

import (
	"bytes"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// CheckFormats accepts the usual formats, and the driver reads every accepted format.
func TestCheckFormats(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	pools := map[string]*sql.DB{"pq": d.OpenPQ(t)}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pools[mode.String()] = d.OpenMode(t, mode)
	}
	refused := 0
	for _, set := range []string{`SET DateStyle = 'ISO, MDY'`, `SET DateStyle = 'ISO, DMY'`, `SET DateStyle = 'SQL, DMY'`, `SET DateStyle = 'German'`, `SET DateStyle = 'Postgres, MDY'`,
		`SET bytea_output = escape`, `SET DateStyle = 'SQL, MDY'; SET bytea_output = escape`} {
		usual := strings.Contains(set, "ISO")
		for mode, db := range pools {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.ExecContext(t.Context(), `RESET ALL`); err != nil {
				t.Fatal(err)
			}
			for one := range strings.SplitSeq(set, "; ") {
				if _, err := conn.ExecContext(t.Context(), one); err != nil {
					t.Fatal(err)
				}
			}
			checked := pgdriver.CheckFormats(t.Context(), conn)
			var at time.Time
			var raw []byte
			want, wantRaw := time.Date(1999, 8, 7, 6, 5, 4, 3000, time.UTC), []byte{0, '\\', 0x80}
			read := conn.QueryRowContext(t.Context(), `SELECT timestamptz '1999-08-07 06:05:04.000003+00', decode('005c80', 'hex')`).Scan(&at, &raw)
			reads := read == nil && at.Equal(want) && bytes.Equal(raw, wantRaw)
			switch {
			case checked == nil && !reads:
				t.Errorf("%s, %s: let through, and read as %v, %q: %v", mode, set, at, raw, read)
			case checked != nil && (usual || !strings.Contains(checked.Error(), "set DateStyle to ISO and bytea_output to hex")):
				t.Errorf("%s, %s: %v", mode, set, checked)
			case checked != nil:
				refused++
			}
			_ = conn.Close()
		}
	}
	if refused == 0 {
		t.Error("every driver reads every format: nothing was refused")
	}
}

// A literal is the same text under every setting of backslashes.
func TestLiterals(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	for _, conforming := range []string{"on", "off"} {
		db := d.OpenSet(t, "standard_conforming_strings", conforming)
		for _, text := range []string{``, `plain`, `it's`, `a\b`, `\`, `\'`, `\\'\n`, `ü\x41`} {
			var got string
			if err := db.QueryRowContext(t.Context(), `SELECT `+ident.Literal(text)).Scan(&got); err != nil || got != text {
				t.Errorf("standard_conforming_strings %s: %q is %q, %v", conforming, text, got, err)
			}
		}
	}
}
