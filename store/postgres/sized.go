package postgres

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/store"
)

// heavyReads is the number of reads that add up bytes after a read that found a large event.
const heavyReads = 64

// sizedSQL has two forms of a read that is bounded by bytes. The bound is one more parameter,
// after all others.
//
// light returns isWithheld as the payload of each event that has more than its share of the
// bound. light costs next to nothing more than a read without a bound, and in most logs it
// withholds nothing. exact adds the bytes up and ends the page at the bound, which takes a
// quarter longer. Neither form fetches a withheld payload: the size of a payload is stored
// beside the pointer to it.
type sizedSQL struct{ light, exact string }

// isWithheld marks a payload that was withheld. A stored payload with the same bytes costs a
// second read. The text has no backslash, since the meaning of a backslash in SQL depends on a
// setting of the session.
var isWithheld = []byte("pgfrontier: withheld; see ReadSized")

const (
	// metadataBytes and bytesOf are SQL expressions for an event's bytes of metadata, and of
	// payload and metadata together. Compressed metadata counts with its compressed size.
	metadataBytes = `COALESCE(pg_column_size(e.metadata), 0)`
	bytesOf       = `(COALESCE(octet_length(e.payload), 0) + ` + metadataBytes + `)`
)

// sized returns the two forms of a read. {columns} in text stands for the columns of the
// SELECT. bound is the number of the parameter.
func sized(text string, bound int) sizedSQL {
	fits := ` <= $` + strconv.Itoa(bound) + `::bigint`
	light := strings.NewReplacer(
		"e.payload,", "CASE WHEN "+bytesOf+fits+" THEN e.payload ELSE decode('"+hex.EncodeToString(isWithheld)+"', 'hex') END,",
		"e.metadata,", "CASE WHEN "+metadataBytes+fits+" THEN e.metadata END,").Replace(readColumns)
	return sizedSQL{
		light: strings.Replace(text, "{columns}", light, 1),
		exact: `SELECT ` + readColumns + `
  FROM (SELECT e.*, sum(` + bytesOf + `) OVER (ORDER BY e.global_position ROWS UNBOUNDED PRECEDING) - ` + bytesOf + ` AS bytes_before
          FROM (` + strings.Replace(text, "{columns}", "e.*", 1) + `) AS e) AS e
 WHERE e.bytes_before < $` + strconv.Itoa(bound) + `::bigint
 ORDER BY e.global_position`,
	}
}

// ReadSized returns visible events above position after, in order of position and from one
// snapshot. It returns at most limit events. The page ends with the event whose payload and
// metadata bring the sum to maxBytes. more reports whether further events may follow. limit and
// maxBytes must be above 0.
func (s *Store) ReadSized(ctx context.Context, q store.Querier, after int64, limit, maxBytes int) (events []store.PersistedEvent, more bool, err error) {
	if err := s.canRead(q); err != nil {
		return nil, false, err
	}
	if limit <= 0 || maxBytes <= 0 {
		return nil, false, fmt.Errorf("storepostgres: ReadSized: limit is %d and maxBytes %d: both must be above 0", limit, maxBytes)
	}
	events, more, err = s.querySized(ctx, q, limit, maxBytes, s.sql.readSized, after, limit)
	if err != nil {
		return nil, false, fmt.Errorf("storepostgres: read the events of %s after position %d: %w", s.events, after, err)
	}
	return events, more, nil
}

// querySized executes a read that is bounded by bytes.
func (s *Store) querySized(ctx context.Context, q store.Querier, limit, maxBytes int, text sizedSQL, args ...any) (events []store.PersistedEvent, more bool, err error) {
	args = s.args(args...)
	args = args[:len(args):len(args)]
	if s.heavy.Add(-1) < 0 {
		events, err = collect(ctx, q, limit, text.light, append(args, max(1, maxBytes/limit))...)
		if err != nil || !withheld(events) {
			return events, len(events) == limit, s.explain(err)
		}
		s.heavy.Store(heavyReads)
	}
	events, err = collect(ctx, q, limit, text.exact, append(args, maxBytes)...)
	return events, len(events) > 0, s.explain(err)
}

func withheld(events []store.PersistedEvent) bool {
	for i := range events {
		if bytes.Equal(events[i].Payload, isWithheld) {
			return true
		}
	}
	return false
}
