package pgdriver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/store"
)

// ErrFormats reports that the driver cannot read the text formats that the session's settings
// select. pgx parses only the text of ISO times and hex bytea values.
var ErrFormats = errors.New("the driver cannot read the format of times or bytea values that the server sends: set DateStyle to ISO and bytea_output to hex, for the role, the database or in the connection string")

// CheckFormats returns [ErrFormats] if the driver cannot read times or bytea values in the
// formats of the session. pgx receives text in the modes exec and simple_protocol.
func CheckFormats(ctx context.Context, q store.Querier) error {
	var style, output string
	err := q.QueryRowContext(ctx, `SELECT current_setting('DateStyle'), current_setting('bytea_output')`).Scan(&style, &output)
	if err != nil {
		return fmt.Errorf("read the formats of the session: %w", err)
	}
	if strings.HasPrefix(style, "ISO") && output == "hex" {
		return nil
	}
	var at time.Time
	var raw []byte
	err = q.QueryRowContext(ctx, `SELECT timestamptz '2001-02-03 04:05:06.000007+00', decode('00ff', 'hex')`).Scan(&at, &raw)
	switch {
	case ctx.Err() != nil, SQLState(err) != "", IsConnectionLoss(err):
		return fmt.Errorf("read the formats of the session: %w", err)
	case !at.Equal(time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)), !bytes.Equal(raw, []byte{0, 255}):
		return fmt.Errorf("DateStyle is %q, bytea_output is %s: %w", style, output, ErrFormats)
	}
	return nil
}

// IsNarrow reports whether the database's encoding lacks characters that Go's strings have.
func IsNarrow(ctx context.Context, q store.Querier) (narrow bool, err error) {
	if err = q.QueryRowContext(ctx, `SELECT pg_catalog.current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII')`).Scan(&narrow); err != nil {
		err = fmt.Errorf("read the encoding of the database: %w", err)
	}
	return narrow, err
}
