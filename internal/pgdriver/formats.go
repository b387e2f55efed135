package pgdriver

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/store"
)

// CheckFormats fails if the driver cannot read times or bytea values as the settings of the
// session make the server send them. pgx knows the format of ISO and hex alone where it is
// sent text: with exec and simple_protocol.
func CheckFormats(ctx context.Context, q store.Querier) error {
	var style, output string
	err := q.QueryRowContext(ctx, `SELECT current_setting('DateStyle'), current_setting('bytea_output')`).Scan(&style, &output)
	if err != nil {
		return fmt.Errorf("look in which format values are sent: %w", err)
	}
	if strings.HasPrefix(style, "ISO") && output == "hex" {
		return nil
	}
	var at time.Time
	var raw []byte
	err = q.QueryRowContext(ctx, `SELECT timestamptz '2001-02-03 04:05:06.000007+00', decode('00ff', 'hex')`).Scan(&at, &raw)
	switch {
	case ctx.Err() != nil, SQLState(err) != "", IsConnectionLoss(err):
		return fmt.Errorf("look in which format values are sent: %w", err)
	case !at.Equal(time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)), !bytes.Equal(raw, []byte{0, 255}):
		return fmt.Errorf("the driver cannot read times or bytea values as DateStyle = %q and bytea_output = %s make the server send them: set DateStyle to ISO and bytea_output to hex, for the role, the database or in the connection string", style, output)
	}
	return nil
}
