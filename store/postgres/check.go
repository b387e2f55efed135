package postgres

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// checkAppend refuses arguments that the database would refuse, since an error of the database
// aborts the caller's transaction.
func (s *Store) checkAppend(tx *sql.Tx, expected store.ExpectedVersion, events []store.Event) error {
	if s.err != nil {
		return s.err
	}
	if tx == nil {
		return errors.New("storepostgres: Append: tx is nil: begin a transaction and pass it")
	}
	if version := expected.Value(); version < 0 {
		return fmt.Errorf("storepostgres: Append: the expected version is %d: versions count from 1, use store.NoStream() for none", version)
	}
	if len(events) == 0 {
		return store.ErrNoEvents
	}
	ids := make(map[uuid.UUID]int, len(events))
	for i, e := range events {
		err := checkEvent(e, events[0])
		if first, twice := ids[e.EventID]; twice && err == nil {
			err = fmt.Errorf("EventID %s is that of event %d too: %w", e.EventID, first+1, ErrDuplicateEventID)
		}
		if err != nil {
			return fmt.Errorf("storepostgres: Append: event %d of %d (%s): %w", i+1, len(events), errtext.Value(e.EventType), err)
		}
		ids[e.EventID] = i
	}
	return nil
}

func checkEvent(e, first store.Event) error {
	if e.AggregateType != first.AggregateType || e.AggregateID != first.AggregateID {
		return fmt.Errorf("it belongs to aggregate %s %s, the first one to %s %s: append to each on its own",
			errtext.Unquoted(e.AggregateType), errtext.Value(e.AggregateID), errtext.Unquoted(first.AggregateType), errtext.Value(first.AggregateID))
	}
	if e.EventID == uuid.Nil {
		return errors.New("EventID is zero: set it, for example to uuid.New()")
	}
	if e.EventVersion < 0 || e.EventVersion > math.MaxInt32 {
		return fmt.Errorf("EventVersion is %d: it must be from 1 to %d, or 0 for 1", e.EventVersion, math.MaxInt32)
	}
	if year := e.CreatedAt.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("CreatedAt is in the year %d: it must be from 1 to 9999, or zero for the database's clock", year)
	}
	if err := checkAggregate(e.AggregateType, e.AggregateID); err != nil {
		return err
	}
	if e.EventType == "" {
		return errors.New("EventType is empty")
	}
	return errtext.Join(
		checkText("EventType", e.EventType),
		checkText("TraceID", e.TraceID.String),
		checkText("CorrelationID", e.CorrelationID.String),
		checkText("CausationID", e.CausationID.String),
		checkMetadata(e.Metadata))
}

func checkAggregate(aggregateType, aggregateID string) error {
	switch {
	case aggregateType == "":
		return errors.New("AggregateType is empty")
	case aggregateID == "":
		return errors.New("AggregateID is empty")
	}
	return errtext.Join(checkText("AggregateType", aggregateType), checkText("AggregateID", aggregateID))
}

// checkText refuses a string that a PostgreSQL text cannot hold.
func checkText(what, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s %.60q is not UTF-8", what, s)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("%s %.60q contains a NUL byte, which PostgreSQL cannot store", what, s)
	}
	return nil
}

// checkMetadata refuses metadata that jsonb refuses. Exception: it accepts numbers beyond the
// range of numeric.
func checkMetadata(m []byte) error {
	if len(m) == 0 {
		return nil
	}
	var value json.RawMessage
	if err := json.Unmarshal(m, &value); err != nil {
		return fmt.Errorf("the Metadata is not JSON: %w", err)
	}
	if !utf8.Valid(m) {
		return errors.New("the Metadata is not UTF-8")
	}
	return checkEscapes(m)
}

// checkEscapes finds the \u escapes that are JSON but no text: NUL and halves of surrogate
// pairs. m is valid JSON.
func checkEscapes(m []byte) error {
	for {
		i := bytes.IndexByte(m, '\\')
		if i < 0 {
			return nil
		}
		if m[i+1] != 'u' {
			m = m[i+2:]
			continue
		}
		r := escaped(m[i:])
		switch {
		case r == 0:
			return errors.New(`the Metadata contains \u0000, which jsonb cannot store`)
		case !utf16.IsSurrogate(r):
			m = m[i+6:]
		case utf16.DecodeRune(r, escaped(m[i+6:])) == utf8.RuneError:
			return fmt.Errorf("the Metadata contains %s, half of a surrogate pair, which jsonb cannot store", m[i:i+6])
		default:
			m = m[i+12:]
		}
	}
}

// escaped returns the code of the \u escape at the beginning of m, or -1.
func escaped(m []byte) rune {
	if !bytes.HasPrefix(m, []byte(`\u`)) {
		return -1
	}
	code, err := strconv.ParseUint(string(m[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(code)
}
