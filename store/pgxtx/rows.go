package pgxtx

import (
	"database/sql/driver"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// formats asks for the binary form of types whose text depends on settings of the session.
var formats = pgx.QueryResultFormatsByOID{
	pgtype.ByteaOID: pgx.BinaryFormatCode, pgtype.Float4OID: pgx.BinaryFormatCode, pgtype.Float8OID: pgx.BinaryFormatCode,
	pgtype.DateOID: pgx.BinaryFormatCode, pgtype.TimestampOID: pgx.BinaryFormatCode, pgtype.TimestamptzOID: pgx.BinaryFormatCode,
}

// rows are the rows of pgx, one of them read ahead.
type rows struct {
	pgx.Rows
	types *pgtype.Map
	ahead bool // the next row is read already
}

func (r *rows) Columns() []string {
	all := make([]string, len(r.FieldDescriptions()))
	for i, d := range r.FieldDescriptions() {
		all[i] = d.Name
	}
	return all
}

func (r *rows) Close() error {
	r.Rows.Close()
	return r.Err()
}

func (r *rows) Next(dest []driver.Value) error {
	more := r.ahead || r.Rows.Next()
	r.ahead = false
	if !more {
		if err := r.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	for i, raw := range r.RawValues() {
		d := r.FieldDescriptions()[i]
		value, err := r.value(d.DataTypeOID, d.Format, raw)
		if err != nil {
			return fmt.Errorf("pgxtx: column %q: %w", d.Name, err)
		}
		dest[i] = value
	}
	return nil
}

// value decodes a value as the driver package of pgx does. What pgx has no type for is its text.
func (r *rows) value(oid uint32, format int16, raw []byte) (driver.Value, error) {
	if raw == nil {
		return nil, nil
	}
	if of, ok := r.types.TypeForOID(oid); ok {
		return of.Codec.DecodeDatabaseSQLValue(r.types, oid, format, raw)
	}
	return string(raw), nil
}
